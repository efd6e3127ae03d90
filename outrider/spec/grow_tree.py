"""Grows a draft tree level by level: the best branches grow, and at the end the best nodes stay.

A candidate's score estimates the log-probability that the target's text runs through it. Candidates
are numbered level by level, so a parent always has a smaller number than its children.
"""

import torch

from outrider.ops.sampling.top_tokens import TopTokens
from outrider.ops.tree.candidates import Candidates, Frontier, TreeLevel
from outrider.ops.tree.grow_level import grow_level
from outrider.ops.tree.plan_rows import DecodeRows
from outrider.spec.draft_slots import DraftSlots
from outrider.wire.draft_budget import Budget


def room_for(tree: Budget, root: torch.Tensor) -> Candidates:  # root [rows]
    """Memory for all candidates of a round; each level is written when it grows."""
    size = root.shape[0], first_number(tree.steps + 1, tree.topk)
    return Candidates(
        scores=root.new_empty(size, dtype=torch.float32),
        tokens=root.new_empty(size),
        parents=root.new_empty(size),
    )


def first_number(depth: int, topk: int) -> int:
    """Number of the first candidate at a depth: how many candidates are above it.

    Node 0 has `topk` children. At every later depth `topk` tips have `topk` children each.
    """
    return 0 if depth == 1 else topk + (depth - 2) * topk * topk


def level_numbers(depth: int, topk: int) -> slice:
    """Numbers of the candidates at a depth."""
    return slice(first_number(depth, topk), first_number(depth + 1, topk))


def level_of(candidates: Candidates, depth: int, topk: int) -> Candidates:
    """The candidates of one depth."""
    numbers = level_numbers(depth, topk)
    return Candidates(
        scores=candidates.scores[:, numbers],
        tokens=candidates.tokens[:, numbers],
        parents=candidates.parents[:, numbers],
    )


def tree_level(slots: DraftSlots, depth: int) -> TreeLevel:
    """How the candidates and scratch nodes of a depth are numbered."""
    return TreeLevel(
        depth=depth,
        first_number=first_number(depth, slots.tree.topk),
        first_node=slots.first_node(depth),
        num_tips=slots.num_branches(depth),
    )


def grow(
    tips: Frontier,
    top: TopTokens,  # of n = rows * branches: the most likely tokens after each branch
    decode: DecodeRows,
    *,
    candidates: Candidates,  # the level of this depth is written
    slots: DraftSlots,
    depth: int,
) -> Frontier:
    """The next tips: the best children of these. All children become candidates.

    At the last depth there are no next tips: the result is not used.
    """
    in_level = level_of(candidates, depth, slots.tree.topk)
    return grow_level(tips, top, decode, candidates=in_level, level=tree_level(slots, depth))
