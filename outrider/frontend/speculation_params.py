"""Parses the `speculation` parameter of a request: its draft budget."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from outrider.errors import RequestError
from outrider.wire.draft_budget import PLAIN, UNBOUNDED, Budget

Speculation: TypeAlias = bool | str | Mapping[str, Any] | None

_MOST = {"steps": UNBOUNDED.steps, "topk": UNBOUNDED.topk, "nodes": UNBOUNDED.nodes}
_SHAPES = 'use "off", {"off": true}, or sizes such as {"steps": 3, "topk": 4, "nodes": 8}'


def parse_speculation(asked: Speculation) -> Budget:
    """The most a request may draft. What it does not limit, the engine's own budget does."""
    if asked is None or asked is True:
        return UNBOUNDED
    if asked is False or asked == "off":
        return PLAIN
    if not isinstance(asked, Mapping):
        raise RequestError(f"speculation cannot be {asked!r}; {_SHAPES}")
    unknown = sorted(map(str, asked.keys() - {"off", *_MOST}))
    if unknown:
        raise RequestError(f"speculation has the unknown key {unknown[0]!r}; {_SHAPES}")
    if not isinstance(asked.get("off", False), bool):
        raise RequestError(f"speculation's off must be true or false, got {asked['off']!r}")
    if asked.get("off"):
        return PLAIN
    return Budget(**{name: _size(asked, name) for name in _MOST})


def _size(asked: Mapping[str, Any], name: str) -> int:
    size, most = asked.get(name, _MOST[name]), _MOST[name]
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= most:
        raise RequestError(
            f"speculation's {name} must be an integer from 1 to {most}, got {size!r}; {_SHAPES}"
        )
    return size
