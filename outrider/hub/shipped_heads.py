"""Draft heads that ship with this package, by target model."""

from dataclasses import dataclass
from pathlib import Path

from outrider.config.draft_config import SUFFIX, TreeSize, UsualDrafts
from outrider.hub.aliases import ALIASES, DEFAULT_ALIAS, ModelSource

_FOLDER = Path(__file__).parent / "heads"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedHead:
    """A head on disk, and with what it was fastest (docs/heads.md)."""

    folder: Path
    usual: UsualDrafts


_HEADS = {
    DEFAULT_ALIAS: ShippedHead(
        folder=_FOLDER / DEFAULT_ALIAS,
        usual=UsualDrafts(
            tree=TreeSize(steps=5, topk=2, nodes=8),
            narrow=TreeSize(steps=3, topk=1, nodes=4),
            cpu_lookup=SUFFIX,
        ),
    ),
}


def shipped_head(model: str) -> ShippedHead | None:
    """The head for an alias or a hub id. None for a path, which may hold any model."""
    source = ALIASES.get(model.lower(), ModelSource(name=model, hub_id=model))
    by_hub_id = {ALIASES[name].hub_id: head for name, head in _HEADS.items()}
    return by_hub_id.get(source.hub_id)
