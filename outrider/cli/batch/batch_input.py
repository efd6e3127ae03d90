"""The lines of an input file, and the requests they hold."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError, RequestError
from outrider.frontend.sampling_params import PARAMETER_NAMES

_MOST_NESTED_ID = 32  # levels of lists and objects in an id
_BODIES = ("prompt", "messages", "prompt_token_ids")
_SHAPES = (
    'write a JSON string, or an object with one of "prompt", "messages" and "prompt_token_ids" '
    'and optionally "id" and sampling parameters, there or in an object "params"'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLine:
    """One line that is not blank. A resumed run recognises it by its digest."""

    number: int  # from 0, blank lines counted
    content: bytes

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRequest:
    """The request of a line: exactly one of the bodies, and its own sampling parameters."""

    kind: str  # one of _BODIES
    body: Any
    changes: Mapping[str, Any]


def read_lines(path: Path) -> Iterator[InputLine]:
    """The lines of a file in order, one in memory at a time."""
    try:
        with path.open("rb") as file:
            for number, content in enumerate(file):
                if content.strip():
                    yield InputLine(number=number, content=content.strip())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; check --input") from error


def decode_line(line: InputLine) -> Any:
    """The JSON value of a line."""
    try:
        return json.loads(line.content)
    except ValueError as error:  # also what is not UTF-8
        raise RequestError(f"not JSON ({error}); {_SHAPES}") from error
    except RecursionError as error:
        raise RequestError(f"the line is nested too deeply; {_SHAPES}") from error


def line_id(line: InputLine) -> Any:
    """The user's id of a line. Its number if it has none, or one that JSON cannot give back."""
    try:
        value = decode_line(line)
    except RequestError:
        return line.number
    if not isinstance(value, Mapping):
        return line.number
    given = value.get("id", value.get("custom_id", line.number))
    return given if _is_plain(given, _MOST_NESTED_ID) else line.number


def _is_plain(value: Any, levels: int) -> bool:
    """Whether a value has no NaN, no infinity, and at most so many levels of lists and objects."""
    if isinstance(value, float):
        return math.isfinite(value)
    if not isinstance(value, list | dict):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_is_plain(each, levels - 1) for each in inner)


def parse_line(line: InputLine) -> LineRequest:
    """Check the format of a line; nothing is checked against the model."""
    value = decode_line(line)
    if isinstance(value, str):
        value = {"prompt": value}
    if not isinstance(value, Mapping):
        raise RequestError(f"a line cannot be {type(value).__name__}; {_SHAPES}")
    kinds = [key for key in _BODIES if key in value]
    if unknown := sorted(value.keys() - {*_BODIES, "id", "params"} - PARAMETER_NAMES):
        raise RequestError(f"the line has the unknown key {unknown[0]!r}; {_SHAPES}")
    if len(kinds) != 1:
        raise RequestError(f"the line has the keys {', '.join(value)}; {_SHAPES}")
    body = value[kinds[0]]
    if kinds[0] == "prompt" and not (isinstance(body, str) and body):
        raise RequestError(f'"prompt" must be a string that is not empty; {_SHAPES}')
    return LineRequest(kind=kinds[0], body=body, changes=_changes(value))


def _changes(value: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling parameters of a line, from its own keys and from `params`."""
    inner = value.get("params", {})
    if not isinstance(inner, Mapping):
        raise RequestError('"params" must be an object of sampling parameters')
    outer = {name: value[name] for name in value if name in PARAMETER_NAMES}
    if twice := sorted(outer.keys() & inner.keys()):
        raise RequestError(f"the line sets {twice[0]!r} twice; keep it outside or inside params")
    return {**inner, **outer}
