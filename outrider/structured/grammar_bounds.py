"""Bounds on the size of a grammar, checked once, when a request is parsed."""

import json
from typing import Any

from outrider.errors import RequestError
from outrider.wire.grammar_spec import GrammarKind, GrammarSpec

MAX_TEXT = {  # characters
    "json_schema": 65_536,
    "regex": 4_096,
    "ebnf": 65_536,
    "structural_tag": 65_536,
}
MAX_DEPTH = 64  # of nested lists and objects, and of nested parentheses


def check_bounds(spec: GrammarSpec) -> None:
    """Refuse a grammar that is too long or nested too deeply."""
    name, most = NAMES[spec.kind], MAX_TEXT.get(spec.kind, 0)
    if len(spec.text) > most:
        raise RequestError(f"the {name} has {len(spec.text)} characters; use at most {most}")
    is_json = spec.kind in ("json_schema", "structural_tag")
    depth = _json_depth(spec.text, name) if is_json else _bracket_depth(spec.text)
    if depth > MAX_DEPTH:
        raise RequestError(f"the {name} is nested more than {MAX_DEPTH} levels deep; flatten it")


NAMES: dict[GrammarKind, str] = {
    "none": "grammar",
    "json_schema": "JSON schema",
    "regex": "regex",
    "ebnf": "EBNF grammar",
    "structural_tag": "structural tag",
}


def _json_depth(text: str, name: str) -> int:
    try:
        value = json.loads(text)
    except RecursionError:
        return MAX_DEPTH + 1
    except ValueError as error:
        raise RequestError(f"the {name} is not JSON ({error})") from error
    return _depth(value)


def _depth(value: Any) -> int:
    """How deep a value is nested. Walks level by level, so it cannot overflow the stack."""
    level, depth = [value], 0
    while level and depth <= MAX_DEPTH:
        depth += 1
        level = [
            child
            for each in level
            if isinstance(each, dict | list)
            for child in (each.values() if isinstance(each, dict) else each)
        ]
    return depth


def _bracket_depth(text: str) -> int:
    """An upper bound of nested groups: parentheses that are escaped or in strings count, too.

    A closing parenthesis without an opening one is ignored.
    """
    depth = most = 0
    for char in text:
        depth = max(depth + (char == "(") - (char == ")"), 0)
        most = max(most, depth)
    return most
