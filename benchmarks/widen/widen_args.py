"""The parsed flags of `widen` and of `iteration --widened`. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.bench.acceptance.acceptance_args import name_of, parse_tree
from outrider.config.draft_config import DraftConfig, TreeSize, resolve_budget
from outrider.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallModel:
    """A small model, and the heads that draft for it: one, or none."""

    name: str
    folder: Path
    heads: tuple[Path, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerWork:
    """Questions to be answered by every number of rows with every tree, and without one."""

    rows: tuple[int, ...]
    trees: dict[str, TreeSize]  # by the name to show
    texts: tuple[str, ...]
    origin: str  # of the texts
    max_tokens: int


def parse_trees(values: Sequence[str]) -> dict[str, TreeSize]:
    """The trees by name, in the order given. Refuses impossible sizes."""
    trees = {}
    for value in values:
        tree = parse_tree(value)
        config = DraftConfig(drafter="eagle3", steps=tree.steps, topk=tree.topk, nodes=tree.nodes)
        settings = resolve_budget(config)
        if settings.notes:
            raise ConfigError(f"--tree {value}: {settings.notes[0]}; change its sizes")
        trees[name_of(tree)] = settings.tree
    return trees
