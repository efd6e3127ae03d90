"""Parses the `speculation` parameter of a request: its draft budget."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from outrider.errors import RequestError
from outrider.wire.draft_budget import PLAIN, UNBOUNDED, Budget

Speculation: TypeAlias = bool | str | Mapping[str, Any] | None

_MOST = {"steps": UNBOUNDED.steps, "topk": UNBOUNDED.topk, "nodes": UNBOUNDED.nodes}
_SHAPES = 'use "off", {"off": true}, or sizes such as {"steps": 3, "topk": 4, "nodes": 8}'


def parse_speculation(value: Speculation) -> Budget:
    """The most a request may draft. What it does not limit, the engine's own budget does."""
    if value is None or value is True:
        return UNBOUNDED
    if value is False or value == "off":
        return PLAIN
    if not isinstance(value, Mapping):
        raise RequestError(f"speculation cannot be {value!r}; {_SHAPES}")
    unknown = sorted(map(str, value.keys() - {"off", *_MOST}))
    if unknown:
        raise RequestError(f"speculation has the unknown key {unknown[0]!r}; {_SHAPES}")
    if not isinstance(value.get("off", False), bool):
        raise RequestError(f"speculation's off must be true or false, got {value['off']!r}")
    if value.get("off"):
        return PLAIN
    return Budget(**{name: _size(value, name) for name in _MOST})


def _size(value: Mapping[str, Any], name: str) -> int:
    size, most = value.get(name, _MOST[name]), _MOST[name]
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= most:
        raise RequestError(
            f"speculation's {name} must be an integer from 1 to {most}, got {size!r}; {_SHAPES}"
        )
    return size
