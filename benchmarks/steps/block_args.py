"""The parsed flags of `blocks`: heads that draft a block, and the trees over it. No torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from benchmarks.steps.step_args import Tree
from outrider.bench.offline.offline_args import split_list
from outrider.errors import ConfigError

BlockKind = Literal["dflash", "dspark"]
MARKOV_RANK = 256  # of published DSpark heads
_CHAIN = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape:
    """A head that drafts a block, and the tree over it."""

    kind: BlockKind
    layers: int
    slots: int
    tree: Tree

    @property
    def name(self) -> str:
        title = {"dflash": "DFlash", "dspark": "DSpark"}[self.kind]
        tree = f"chain of {self.tree.steps}"
        if self.tree.topk > _CHAIN:
            tree = f"tree of {self.tree.nodes}, topk {self.tree.topk}"
        return f"{title}, {self.layers} layers, {self.slots} slots, {tree}"


def parse_kind(value: str) -> BlockKind:
    for kind in get_args(BlockKind):
        if value == kind:
            chosen: BlockKind = kind
            return chosen
    raise ConfigError(f"--kind has {value!r}; use {' or '.join(get_args(BlockKind))}")


def block_shapes(
    kind: BlockKind,
    *,
    layers: tuple[int, ...],
    trees: str,
    tree_drafts: int,  # of the blocks under trees
    mean_emitted: float,
) -> Iterator[BlockShape]:
    """Every head with every tree."""
    sizes = [_tree_sizes(part) for part in split_list(trees)]
    if not sizes:
        raise ConfigError("--trees is empty; use lengths of chains and topk x nodes, as 7,4x16")
    for num_layers in layers:
        for topk, nodes in sizes:
            steps = nodes - 1 if topk == _CHAIN else min(tree_drafts, nodes - 1)
            yield BlockShape(
                kind=kind,
                layers=num_layers,
                slots=steps if kind == "dspark" else steps + 1,  # slot 0 of DFlash drafts nothing
                tree=Tree(steps=steps, topk=topk, nodes=nodes, mean_emitted=mean_emitted),
            )


def _tree_sizes(part: str) -> tuple[int, int]:  # topk and nodes
    topk, cross, nodes = part.partition("x")
    if topk.isdigit() and not cross:
        return _CHAIN, int(topk) + 1
    if topk.isdigit() and nodes.isdigit() and int(topk) > _CHAIN:
        return int(topk), int(nodes)
    raise ConfigError(f"--trees has {part!r}; use the length of a chain, or topk x nodes as 4x16")
