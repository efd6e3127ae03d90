"""Refuses JSON schemas with rules that the compiler ignores: their answers could break the rule."""

import json
from collections.abc import Iterator
from typing import Any

from outrider.errors import RequestError

# Keywords by what they hold. Keywords that hold no schema are not walked.
_ONE_SCHEMA = ("items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")

_IGNORED = (
    "not",
    "if",
    "then",
    "else",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "contains",
    "minContains",
    "maxContains",
    "multipleOf",
    "$dynamicRef",
    "$recursiveRef",
)


def check_schema(schema: Any) -> None:
    """Raise for the first rule that the compiler would ignore."""
    for each in _schemas(schema):
        for keyword in _IGNORED:
            if keyword in each:
                raise RequestError(
                    f"the JSON schema has {keyword!r}, which structured output cannot follow; "
                    "leave it out, or say the same with enum, anyOf, pattern or bounds"
                )
        _check_unique(each)
        _check_all_of(each)
        _check_required(each)


def loosened(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without the rules that would be refused."""
    copy: dict[str, Any] = json.loads(json.dumps(schema))
    for each in _schemas(copy):
        for keyword in (*_IGNORED, "uniqueItems"):
            each.pop(keyword, None)
        if isinstance(each.get("allOf"), list) and len(each["allOf"]) > 1:
            del each["allOf"]
        if _missing(each):
            each["required"] = [
                name for name in each["required"] if name in each.get("properties", {})
            ]
    return copy


def _schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """The schema and all schemas inside. A property may have the name of a keyword."""
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if not isinstance(each, dict):
            continue
        yield each
        waiting += [each[keyword] for keyword in _ONE_SCHEMA if keyword in each]
        for keyword in _LISTS:
            waiting += each[keyword] if isinstance(each.get(keyword), list) else []
        for keyword in _NAMED:
            waiting += each[keyword].values() if isinstance(each.get(keyword), dict) else []


def _check_unique(schema: dict[str, Any]) -> None:
    if schema.get("uniqueItems") is True:
        raise RequestError(
            "the JSON schema has 'uniqueItems', which structured output cannot follow; leave it out"
        )


def _check_all_of(schema: dict[str, Any]) -> None:
    parts = schema.get("allOf")
    if isinstance(parts, list) and len(parts) > 1:
        raise RequestError(
            f"the JSON schema has 'allOf' with {len(parts)} schemas, which structured output "
            "cannot join; write them as one schema"
        )


def _check_required(schema: dict[str, Any]) -> None:
    missing = _missing(schema)
    if missing:
        raise RequestError(
            f"the JSON schema requires {missing[0]!r} and has no such property, while "
            "additionalProperties is false; add the property"
        )


def _missing(schema: dict[str, Any]) -> list[Any]:
    """Required names that no property of a closed object has."""
    required, named = schema.get("required"), schema.get("properties", {})
    is_closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    if not (is_closed and isinstance(required, list) and isinstance(named, dict)):
        return []
    return [name for name in required if name not in named]
