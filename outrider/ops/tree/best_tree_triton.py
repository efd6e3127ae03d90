"""The best nodes of draft trees over blocks, as in `best_tree.py`: one program per row.

Scores are float32, everything else is int64. Launched without fused multiply-adds, so that every
device gives equal scores and equal trees.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.tree.candidates import Candidates, SlotTokens
from outrider.ops.tree.grow_level import STEP_COST
from outrider.ops.tree.tree_order_triton import (
    LEAST_TILE,
    just_below,
    number_of,
    rank_of,
    score_of,
)

# By argument index. Views into packed buffers have any alignment, and sizes change with the step:
# neither may compile the kernel again.
_POINTERS, _SIZES = range(6), range(6, 10)


@triton.jit
def _child_score(score, logprob, is_there, STEP_COST: tl.constexpr):
    """The score of a child, -inf where there is none."""
    joint = tl.minimum(score + logprob - STEP_COST, just_below(score))
    is_real = is_there & (logprob == logprob) & (score > float("-inf"))  # no NaN
    return tl.where(is_real, joint, float("-inf"))


@triton.jit
def _at(values, is_it):
    """The value at the only place where `is_it` holds."""
    return tl.sum(tl.where(is_it, values, 0), axis=0)


@triton.jit(do_not_specialize=_SIZES, do_not_specialize_on_alignment=_POINTERS)
def _best_tree_kernel(
    logprobs,  # [rows, steps, topk]
    tokens,
    budgets,  # [3, rows]
    new_scores,  # [rows, drafts], written, as all below
    new_tokens,
    new_parents,
    budget_stride,
    steps,
    topk,
    num_drafts,
    STEP_COST: tl.constexpr,
    NODES: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    node = tl.arange(0, NODES)
    overlap.begin(PDL)
    own_steps = tl.minimum(tl.load(budgets + row), steps)
    own_topk = tl.minimum(tl.load(budgets + budget_stride + row), topk)
    base = row * steps * topk
    # Nodes of the tree so far: node 0 has score 0. `ranks` are those of the next children.
    scores = tl.zeros([NODES], tl.float32)
    depths = tl.zeros([NODES], tl.int64)
    ranks = tl.zeros([NODES], tl.int64)
    has_child = (own_steps > 0) & (own_topk > 0)
    first = tl.load(logprobs + base, mask=has_child, other=0.0)
    first = _child_score(tl.full([], 0.0, tl.float32), first, has_child, STEP_COST)
    next_scores = tl.where(node == 0, first, float("-inf"))
    for number in range(1, num_drafts + 1):
        # Of equal scores the shallower child, then that of the node that joined first.
        order = (depths * NODES).to(tl.int32) + node
        best = tl.max(rank_of(next_scores, order, node < number), axis=0)
        score, parent = score_of(best), number_of(best) % NODES
        is_real, is_parent = score > float("-inf"), node == parent
        depth, rank = _at(depths, is_parent), _at(ranks, is_parent)
        place = base + depth * topk + rank
        token = tl.load(tokens + place, mask=is_real, other=0)
        goal = row * num_drafts + number - 1
        tl.store(new_scores + goal, score)
        tl.store(new_tokens + goal, token)
        tl.store(new_parents + goal, tl.where(is_real, parent - 1, -1).to(tl.int64))

        has_sibling = is_real & (rank + 1 < own_topk)
        value = tl.load(logprobs + place + 1, mask=has_sibling, other=0.0)
        parent_score = _at(scores, is_parent)
        sibling = _child_score(parent_score, value, has_sibling, STEP_COST)
        has_child = is_real & (depth + 1 < own_steps)
        value = tl.load(logprobs + base + (depth + 1) * topk, mask=has_child, other=0.0)
        child = _child_score(score, value, has_child, STEP_COST)

        is_new = node == number
        ranks = tl.where(is_parent, rank + 1, ranks)
        scores = tl.where(is_new, score, scores)
        depths = tl.where(is_new, depth + 1, depths)
        next_scores = tl.where(is_parent, sibling, tl.where(is_new, child, next_scores))


def best_tree_triton(
    slots: SlotTokens,
    budgets: torch.Tensor,  # [3, rows] int64
    *,
    num_drafts: int,
) -> Candidates:
    """`best_tree` in one launch."""
    rows, steps, topk = slots.logprobs.shape
    scores = slots.logprobs.new_empty(rows, num_drafts)
    tokens, parents = budgets.new_empty(2, rows, num_drafts).unbind(0)
    kernel: Any = _best_tree_kernel[(rows,)]
    kernel(
        slots.logprobs.contiguous(),
        slots.tokens.contiguous(),
        budgets,
        scores,
        tokens,
        parents,
        budgets.stride(0),
        steps,
        topk,
        num_drafts,
        STEP_COST=STEP_COST,
        NODES=max(LEAST_TILE, triton.next_power_of_2(num_drafts + 1)),
        PDL=overlap.is_on(scores),
        num_warps=1,
        enable_fp_fusion=False,
        **overlap.options(scores),
    )
    return Candidates(scores=scores, tokens=tokens, parents=parents)
