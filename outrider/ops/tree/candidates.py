"""Nodes that may join a draft tree, and the nodes that grow next."""

from dataclasses import dataclass

import torch

from outrider.ops.tree.draft_tree import DraftTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Nodes that may join the tree: of one level, or of all levels in order."""

    scores: torch.Tensor  # [rows, width] float32, -inf where the row's budget rules it out
    tokens: torch.Tensor  # [rows, width]
    parents: torch.Tensor  # [rows, width] number of the parent candidate, -1 for node 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedTree:
    """The tree of each row, and which candidates its nodes are."""

    tree: DraftTree
    numbers: torch.Tensor  # [rows, nodes] candidate numbers, -1 for node 0 and absent nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """The tips that grow next, best first: as many in each row, or node 0 alone."""

    scores: torch.Tensor  # [rows, branches] float32
    numbers: torch.Tensor  # [rows, branches] candidate numbers, -1 for node 0
    parent_tips: torch.Tensor  # [rows, branches] index of each parent in the frontier before
    positions: torch.Tensor  # [rows, branches] absolute position of the children's tokens
    nodes: DraftTree  # [rows, branches] in the scratch region; `parents` mean nothing there


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotTokens:
    """What the slots of a block propose. All nodes at depth s have the same children: the tokens of
    slot s, best first.
    """

    logprobs: torch.Tensor  # [rows, steps, topk] float32
    tokens: torch.Tensor  # [rows, steps, topk] int64


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeLevel:
    """Which level of a draft tree grows, and how its candidates and nodes are numbered."""

    depth: int
    first_number: int  # number of its first candidate
    first_node: int  # scratch node of its first branch
    num_tips: int  # branches that grow next; 0 at the last depth
    is_wide: bool = False  # all of them do; else as many as the topk of their row
