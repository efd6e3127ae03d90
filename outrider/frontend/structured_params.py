"""Parses the `structured` parameter of a request: the grammar of its answer."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from outrider.errors import RequestError
from outrider.frontend.schema_support import check_schema
from outrider.structured.grammar_bounds import check_bounds
from outrider.wire.grammar_spec import NO_GRAMMAR, GrammarSpec

Structured: TypeAlias = str | Mapping[str, Any] | None

MAX_CHOICES = 1024
KEYS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")

_SHAPES = (
    'use "json_object", or one of {"json": schema}, {"regex": "..."}, {"choice": ["a", "b"]}, '
    '{"grammar": "root ::= ..."}, {"structural_tag": {...}}'
)
_ANY_OBJECT = GrammarSpec(kind="json_schema", text='{"type": "object"}')
_FREE = NO_GRAMMAR.spec


def parse_structured(value: Structured) -> GrammarSpec:
    """The grammar of an answer, refused here where its size or its type is wrong."""
    if value is None:
        return _FREE
    if value == "json_object":
        return _ANY_OBJECT
    if not isinstance(value, Mapping):
        raise RequestError(f"structured cannot be {_short(value)}; {_SHAPES}")
    given = {name: each for name, each in value.items() if each is not None}
    if len(given) != 1:
        raise RequestError(
            f"structured must have one key, got {sorted(map(str, given))}; {_SHAPES}"
        )
    spec = _parse(*next(iter(given.items())))
    check_bounds(spec)
    if spec.kind == "json_schema":
        check_schema(json.loads(spec.text))
    return spec


def _parse(name: object, value: Any) -> GrammarSpec:
    match name:
        case "json":
            return GrammarSpec(kind="json_schema", text=_json_text("json", value))
        case "json_object":
            if value is not True:
                raise RequestError(f"structured's json_object must be true, got {_short(value)}")
            return _ANY_OBJECT
        case "regex":
            return GrammarSpec(kind="regex", text=_text("regex", value))
        case "choice":
            return GrammarSpec(kind="ebnf", text=_choices(value))
        case "grammar":
            return GrammarSpec(kind="ebnf", text=_text("grammar", value))
        case "structural_tag":
            return GrammarSpec(kind="structural_tag", text=_json_text("structural_tag", value))
    raise RequestError(f"structured has the unknown key {_short(name)}; {_SHAPES}")


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise RequestError(f"structured's {name} must be a non-empty string, got {_short(value)}")
    return value


def _json_text(name: str, value: object) -> str:
    if isinstance(value, str):
        return _text(name, value)
    if not isinstance(value, Mapping | bool):
        raise RequestError(f"structured's {name} must be a JSON object, got {_short(value)}")
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"structured's {name} is not JSON ({error})") from error


def _choices(value: object) -> str:
    """A grammar that spells one of the texts."""
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise RequestError(f"structured's choice must be a list of texts, got {_short(value)}")
    if len(value) > MAX_CHOICES:
        raise RequestError(f"structured's choice has {len(value)} texts; use at most {MAX_CHOICES}")
    return "root ::= " + " | ".join(_quoted(_text("choice", text)) for text in value)


def _quoted(text: str) -> str:
    """A literal of EBNF. Characters with a meaning in EBNF are written as numbers."""
    return '"' + "".join(_escaped(char) for char in text) + '"'


def _escaped(char: str) -> str:
    is_plain = char.isascii() and char.isprintable() and char not in '"\\'
    return char if is_plain else f"\\U{ord(char):08x}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
