"""Draft heads that come with this package, by the model they were trained for."""

from dataclasses import dataclass
from pathlib import Path

from outrider.hub.aliases import ALIASES, DEFAULT_ALIAS, ModelSource

_FOLDER = Path(__file__).parent / "heads"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedHead:
    """A head on disk, and the trees with which it was fastest (docs/heads.md)."""

    folder: Path
    steps: int
    topk: int
    nodes: int


_HEADS = {
    DEFAULT_ALIAS: ShippedHead(folder=_FOLDER / DEFAULT_ALIAS, steps=5, topk=2, nodes=8),
}


def shipped_head(model: str) -> tuple[ShippedHead, ...]:
    """The head for an alias or a hub id, if one ships. A path may hold any model: it has none."""
    source = ALIASES.get(model.lower(), ModelSource(name=model, hub_id=model))
    return tuple(head for name, head in _HEADS.items() if ALIASES[name].hub_id == source.hub_id)
