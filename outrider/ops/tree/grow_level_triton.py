"""One level of draft trees, as in `grow_level.py`: one program per row.

Scores are float32, everything else is int64. Launched without fused multiply-adds, so that every
device gives equal scores and equal trees.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.sampling.top_tokens import TopTokens
from outrider.ops.tree.candidates import Candidates, Frontier, TreeLevel
from outrider.ops.tree.draft_tree import DraftTree
from outrider.ops.tree.grow_level import STEP_COST
from outrider.ops.tree.plan_rows import DecodeRows
from outrider.ops.tree.tree_order_triton import (
    LEAST_TILE,
    best_keys,
    just_below,
    num_warps_of,
    number_of,
    rank_of,
    score_of,
)

# By argument index. Views into packed buffers have any alignment, and sizes change with the step:
# neither may compile the kernel again.
_POINTERS, _SIZES = range(17), range(17, 25)


@triton.jit(do_not_specialize=_SIZES, do_not_specialize_on_alignment=_POINTERS)
def _grow_kernel(
    tip_scores,  # [rows, branches]
    tip_numbers,
    tip_ancestors,
    logprobs,  # [rows * branches, topk]
    tokens,
    budgets,  # [3, rows]
    lengths,  # [rows]
    level_scores,  # [rows, branches * topk], written, as all below
    level_tokens,
    level_parents,
    new_scores,  # [rows, num_tips]
    new_numbers,
    new_parent_tips,
    new_positions,
    new_tokens,
    new_depths,
    new_ancestors,
    budget_stride,
    level_stride,
    branches,
    topk,
    depth,
    first_number,
    first_node,
    num_tips,
    STEP_COST: tl.constexpr,
    WIDTH: tl.constexpr,
    TIPS: tl.constexpr,
    IS_WIDE: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    child = tl.arange(0, WIDTH)
    inside = child < branches * topk
    overlap.begin(PDL)
    own_steps = tl.load(budgets + row)
    own_topk = tl.load(budgets + budget_stride + row)
    parent = row * branches + child // topk
    here = row * branches * topk + child
    score = tl.load(tip_scores + parent, mask=inside, other=0.0)
    value = tl.load(logprobs + here, mask=inside, other=0.0)
    joint = tl.minimum(score + value - STEP_COST, just_below(score))
    is_allowed = (child % topk < own_topk) & (depth <= own_steps) & (value == value)  # no NaN
    joint = tl.where(is_allowed, joint, float("-inf"))
    place = row * level_stride + child
    tl.store(level_scores + place, joint, mask=inside)
    tl.store(level_tokens + place, tl.load(tokens + here, mask=inside, other=0), mask=inside)
    number = tl.load(tip_numbers + parent, mask=inside, other=0)
    tl.store(level_parents + place, number, mask=inside)

    best = best_keys(rank_of(joint, child, inside), num_tips, TIPS)
    tip = tl.arange(0, TIPS)
    is_tip = tip < num_tips
    winner = tl.where(is_tip, number_of(best), 0)
    parent_tip = winner // topk  # each branch has `topk` children
    above = tl.load(tip_ancestors + row * branches + parent_tip, mask=is_tip, other=0)
    own_bit = tl.full([TIPS], 1, tl.int64) << tl.where(is_tip, first_node + tip, 0).to(tl.int64)
    token = tl.load(tokens + row * branches * topk + winner, mask=is_tip, other=0)
    goal = row * num_tips + tip
    alive = tl.where((tip < own_topk) | IS_WIDE, score_of(best), float("-inf"))
    position = tl.load(lengths + row) + depth + 1 + tl.zeros([TIPS], tl.int64)
    tl.store(new_scores + goal, alive, mask=is_tip)
    tl.store(new_numbers + goal, first_number + winner, mask=is_tip)
    tl.store(new_parent_tips + goal, parent_tip, mask=is_tip)
    tl.store(new_positions + goal, position, mask=is_tip)
    tl.store(new_tokens + goal, token, mask=is_tip)
    tl.store(new_depths + goal, tl.zeros([TIPS], tl.int64) + depth - 1, mask=is_tip)
    tl.store(new_ancestors + goal, above | own_bit, mask=is_tip)


def grow_level_triton(
    tips: Frontier,
    top: TopTokens,  # of n = rows * branches
    decode: DecodeRows,
    *,
    candidates: Candidates,  # of this level; written
    level: TreeLevel,
) -> Frontier:
    """`grow_level` in one launch."""
    (rows, branches), topk = tips.scores.shape, top.tokens.shape[1]
    width = level.num_tips or topk  # at the last depth nothing is written
    scores = tips.scores.new_empty(rows, width)
    # int64 tensors of one size: one allocation for all six.
    new = top.tokens.new_empty(6, rows, width).unbind(0)
    numbers, parent_tips, positions, tokens, depths, ancestors = new
    kernel: Any = _grow_kernel[(rows,)]
    kernel(
        tips.scores,
        tips.numbers,
        tips.nodes.ancestors,
        top.logprobs,
        top.tokens,
        decode.budgets,
        decode.lengths,
        candidates.scores,
        candidates.tokens,
        candidates.parents,
        scores,
        *new,
        decode.budgets.stride(0),
        candidates.scores.stride(0),
        branches,
        topk,
        level.depth,
        level.first_number,
        level.first_node,
        level.num_tips,
        STEP_COST=STEP_COST,
        WIDTH=max(LEAST_TILE, triton.next_power_of_2(branches * topk)),
        TIPS=max(LEAST_TILE, triton.next_power_of_2(width)),
        IS_WIDE=level.is_wide,
        PDL=overlap.is_on(scores),
        num_warps=num_warps_of(branches * topk),
        enable_fp_fusion=False,
        **overlap.options(scores),
    )
    nodes = DraftTree(tokens=tokens, parents=depths, depths=depths, ancestors=ancestors)
    return Frontier(
        scores=scores, numbers=numbers, parent_tips=parent_tips, positions=positions, nodes=nodes
    )
