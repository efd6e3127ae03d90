"""What all formats of tool calls have in common: a block between marks, parsed as a whole."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

Call = tuple[str, str]  # the name of a function, and its arguments as JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFormat:
    """How one family writes calls. `parse` gets a block with its marks; None means no calls."""

    opens: tuple[str, ...]  # any of these opens a block
    close: str  # empty if a block reaches to the end of the answer
    is_leading: bool  # whether only a mark at the begin of an answer opens a block
    has_strings: bool = False  # whether a closing mark inside a JSON string does not count
    parse: Callable[[str], list[Call] | None]


def json_calls(values: list[Any], *keys: str) -> list[Call] | None:
    """Calls like {"name": ..., <key>: {...}}, or None if one value is something else."""
    calls = []
    for value in values:
        call = _json_call(value, keys)
        if call is None:
            return None
        calls.append(call)
    return calls or None


def _json_call(value: Any, keys: tuple[str, ...]) -> Call | None:
    if not isinstance(value, dict) or not value.keys() <= {"name", "id", "type", *keys}:
        return None
    arguments: Any = next((value[key] for key in keys if key in value), {})
    if not isinstance(value.get("name"), str) or not isinstance(arguments, dict):
        return None
    return value["name"], written(arguments)


def written(arguments: dict[str, Any]) -> str:
    """The arguments as JSON."""
    text = json.dumps(arguments, ensure_ascii=False)
    # Half a surrogate pair is valid JSON when escaped, but not valid Unicode.
    is_text = not any("\ud800" <= char <= "\udfff" for char in text)
    return text if is_text else json.dumps(arguments)


def parse_json(text: str) -> Any:
    """The value of a JSON text, or None."""
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError):
        return None


def parse_object(text: str) -> str | None:
    """The JSON of an object, written again; None if the text is no object."""
    value = parse_json(text)
    return written(value) if isinstance(value, dict) else None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{digits} is too large")
    return value
