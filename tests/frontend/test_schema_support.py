"""Rules of a JSON schema that the compiler would ignore are refused by name."""

import json

import pytest
from support.tiny_vocabulary import TINY

from outrider.errors import RequestError
from outrider.frontend.schema_support import check_schema, loosened
from outrider.frontend.structured_params import parse_structured
from outrider.structured.grammar_compiler import Compiler

IGNORED = {
    "not": {"not": {"type": "string"}},
    "allOf": {"allOf": [{"type": "string"}, {"type": "integer"}]},
    "uniqueItems": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
    "multipleOf": {"type": "integer", "multipleOf": 3},
    "if": {"if": {"type": "string"}, "then": {"minLength": 2}},
    "contains": {"type": "array", "contains": {"const": 1}},
    "requires 'b'": {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}
INSIDE = {
    "a property": lambda schema: {"type": "object", "properties": {"x": schema}},
    "items": lambda schema: {"type": "array", "items": schema},
    "a choice": lambda schema: {"anyOf": [{"type": "null"}, schema]},
    "a definition": lambda schema: {"$ref": "#/$defs/x", "$defs": {"x": schema}},
}


@pytest.mark.parametrize("rule", IGNORED)
def test_a_rule_that_would_be_ignored_is_refused_by_name(rule):
    with pytest.raises(RequestError, match=rule):
        parse_structured({"json": IGNORED[rule]})


@pytest.mark.parametrize("place", INSIDE)
def test_rules_are_found_inside_of_schemas(place):
    with pytest.raises(RequestError, match="multipleOf"):
        parse_structured({"json": INSIDE[place](IGNORED["multipleOf"])})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"not": {"type": "integer"}, "if": {"type": "null"}}},
        {"enum": ["not", "allOf"]},
        {"const": {"not": 1}},
        {"allOf": [{"type": "string"}]},
        {"type": "array", "items": {"type": "integer"}, "uniqueItems": False},
        {"type": "object", "required": ["a"], "properties": {}},
        {"oneOf": [{"type": "string"}, {"type": "null"}]},
    ],
)
def test_names_and_values_that_look_like_rules_are_accepted(schema):
    spec = parse_structured({"json": schema})
    assert json.loads(spec.text) == schema
    assert Compiler(TINY).compile(spec)


@pytest.mark.parametrize("place", INSIDE)
@pytest.mark.parametrize("rule", IGNORED)
def test_a_loosened_schema_is_accepted_and_the_original_is_unchanged(rule, place):
    schema = INSIDE[place](IGNORED[rule])
    before = json.dumps(schema)
    check_schema(loosened(schema))
    assert json.dumps(schema) == before
    with pytest.raises(RequestError):
        check_schema(schema)
