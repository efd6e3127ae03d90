"""The growth of draft trees, as `spec/grow_tree.py` says it: one program per row.

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

_LEAST = 16  # lanes of a tile, so that small trees share one compiled kernel
_BELOW_ALL = tl.constexpr(-(2**63))
_LOW_BITS = tl.constexpr(0x7FFFFFFF)
_MINUS_INFINITY = tl.constexpr(-2139095041)  # its bits as `_rank` orders them


@triton.jit
def _rank(scores, numbers, is_real):
    """Score and number in one integer: the largest is the best, of equal scores the first."""
    bits = (scores + 0.0).to(tl.int32, bitcast=True)  # there is but one zero
    ordered = bits ^ ((bits >> 31) & _LOW_BITS)
    key = (ordered.to(tl.int64) << 32) | (numbers ^ _LOW_BITS).to(tl.int64)
    return tl.where(is_real, key, _BELOW_ALL)


@triton.jit
def _number_of(key):
    return ((key & _LOW_BITS) ^ _LOW_BITS).to(tl.int32)


@triton.jit
def _score_of(key):
    ordered = (key >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & _LOW_BITS)).to(tl.float32, bitcast=True)


@triton.jit
def _best(keys, most, BEST: tl.constexpr):
    """The `most` largest keys in order; `_BELOW_ALL` past them."""
    channel = tl.arange(0, BEST)
    best = tl.full([BEST], _BELOW_ALL, tl.int64)
    for i in range(most):
        largest = tl.max(keys, axis=0)
        best = tl.where(channel == i, largest, best)
        keys = tl.where(keys == largest, _BELOW_ALL, keys)
    return best


@triton.jit
def _just_below(x):
    """The next smaller float."""
    bits = x.to(tl.int32, bitcast=True)
    below = tl.where(x > 0.0, bits - 1, bits + 1)
    below = tl.where(x == 0.0, -2147483647, below)  # minus the smallest float there is
    below = tl.where(x == float("-inf"), bits, below)
    return below.to(tl.float32, bitcast=True)


# By place among the arguments: views into packed buffers lie anywhere, sizes change with the step.
_GROW_POINTERS, _GROW_SIZES = range(17), range(17, 25)
_SELECT_POINTERS, _SELECT_SIZES = range(9), range(9, 15)


@triton.jit(do_not_specialize=_GROW_SIZES, do_not_specialize_on_alignment=_GROW_POINTERS)
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
    new_scores,  # [rows, topk]
    new_numbers,
    new_places,
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
    joint = tl.minimum(score + value - STEP_COST, _just_below(score))
    is_allowed = (child % topk < own_topk) & (depth <= own_steps)
    joint = tl.where(is_allowed, joint, float("-inf"))
    place = row * level_stride + child
    tl.store(level_scores + place, joint, mask=inside)
    tl.store(level_tokens + place, tl.load(tokens + here, mask=inside, other=0), mask=inside)
    number = tl.load(tip_numbers + parent, mask=inside, other=0)
    tl.store(level_parents + place, number, mask=inside)

    best = _best(_rank(joint, child, inside), num_tips, TIPS)
    tip = tl.arange(0, TIPS)
    is_tip = tip < num_tips
    winner = tl.where(is_tip, _number_of(best), 0)
    kin = winner // topk  # each branch has `topk` children
    seen = tl.load(tip_ancestors + row * branches + kin, mask=is_tip, other=0)
    own = tl.full([TIPS], 1, tl.int64) << tl.where(is_tip, first_node + tip, 0).to(tl.int64)
    token = tl.load(tokens + row * branches * topk + winner, mask=is_tip, other=0)
    goal = row * topk + tip
    alive = tl.where(tip < own_topk, _score_of(best), float("-inf"))
    position = tl.load(lengths + row) + depth + 1 + tl.zeros([TIPS], tl.int64)
    tl.store(new_scores + goal, alive, mask=is_tip)
    tl.store(new_numbers + goal, first_number + winner, mask=is_tip)
    tl.store(new_places + goal, kin, mask=is_tip)
    tl.store(new_positions + goal, position, mask=is_tip)
    tl.store(new_tokens + goal, token, mask=is_tip)
    tl.store(new_depths + goal, tl.zeros([TIPS], tl.int64) + depth - 1, mask=is_tip)
    tl.store(new_ancestors + goal, seen | own, mask=is_tip)


def grow_level(
    tips: tuple[torch.Tensor, ...],  # scores, numbers, ancestors: [rows, branches]
    likely: tuple[torch.Tensor, torch.Tensor],  # log-probabilities, tokens: [rows * branches, topk]
    *,
    budgets: torch.Tensor,  # [3, rows]
    lengths: torch.Tensor,  # [rows]
    level: tuple[torch.Tensor, ...],  # scores, tokens, parents: [rows, branches * topk], written
    numbering: tuple[int, int, int],  # depth, number of its first candidate, its first scratch node
    num_tips: int,
    step_cost: float,
) -> tuple[torch.Tensor, ...]:
    """The next tips: scores, numbers, places, positions, tokens, depths, ancestors."""
    rows, branches = tips[0].shape
    topk = likely[1].shape[1]
    scores = tips[0].new_empty(rows, topk)
    # Eight bytes each, side by side: one allocation for all.
    new = likely[1].new_empty(6, rows, topk)
    kernel: Any = _grow_kernel[(rows,)]
    kernel(
        *tips,
        *likely,
        budgets,
        lengths,
        *level,
        scores,
        *new.unbind(0),
        budgets.stride(0),
        level[0].stride(0),
        branches,
        topk,
        *numbering,
        num_tips,
        STEP_COST=step_cost,
        WIDTH=max(_LEAST, triton.next_power_of_2(branches * topk)),
        TIPS=max(_LEAST, triton.next_power_of_2(topk)),
        PDL=overlap.is_on(scores),
        num_warps=_num_warps(branches * topk),
        enable_fp_fusion=False,
        **overlap.options(scores),
    )
    return scores, *new.unbind(0)


@triton.jit(do_not_specialize=_SELECT_SIZES, do_not_specialize_on_alignment=_SELECT_POINTERS)
def _select_kernel(
    root,  # [rows]
    scores,  # [rows, candidates]
    tokens,
    parents,
    budgets,  # [3, rows]
    node_tokens,  # [rows, nodes], written, as all below
    node_parents,
    node_depths,
    node_ancestors,
    budget_stride,
    candidate_stride,
    num_candidates,
    num_drafts,
    nodes,
    steps,
    CANDIDATES: tl.constexpr,
    NODES: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    number = tl.arange(0, CANDIDATES)
    inside = number < num_candidates
    base = row * candidate_stride
    overlap.begin(PDL)
    own_nodes = tl.load(budgets + 2 * budget_stride + row)
    score = tl.load(scores + base + number, mask=inside, other=0.0)
    best = _best(_rank(score, number, inside), num_drafts, NODES)

    # Node n is the n-th smallest of the chosen numbers; absent ones have the largest of all.
    channel = tl.arange(0, NODES)
    is_chosen = (
        (channel < num_drafts) & (channel < own_nodes - 1) & ((best >> 32) > _MINUS_INFINITY)
    )
    chosen = tl.where(is_chosen, _number_of(best), num_candidates)
    chosen = tl.sort(tl.where(channel == NODES - 1, -1, chosen))  # node 0 has number -1
    is_present = (chosen >= 0) & (chosen < num_candidates)
    token = tl.load(tokens + base + chosen, mask=is_present, other=-1)
    token = tl.where(channel == 0, tl.load(root + row), token)
    above = tl.load(parents + base + chosen, mask=is_present, other=-1)
    is_smaller = chosen[None, :] < above[:, None]  # [NODES, NODES]
    parent = tl.sum(is_smaller.to(tl.int32), axis=1)  # the place of the parent's number
    parent = tl.where(above >= 0, parent, 0)

    own = tl.full([NODES], 1, tl.int64) << channel.to(tl.int64)
    ancestors = own
    depth = tl.zeros([NODES], tl.int64)
    for _ in range(steps):  # information moves down one level at a time
        ancestors = own | tl.gather(ancestors, parent, axis=0)
        depth = tl.where(channel == 0, 0, tl.gather(depth, parent, axis=0) + 1)
    is_node = channel < nodes
    goal = row * nodes + channel
    tl.store(node_tokens + goal, token, mask=is_node)
    tl.store(node_parents + goal, tl.where(channel == 0, -1, parent).to(tl.int64), mask=is_node)
    tl.store(node_depths + goal, depth, mask=is_node)
    tl.store(node_ancestors + goal, ancestors, mask=is_node)


def select_nodes(
    root: torch.Tensor,  # [rows]
    candidates: tuple[torch.Tensor, ...],  # scores, tokens, parents: [rows, candidates]
    budgets: torch.Tensor,  # [3, rows]
    *,
    nodes: int,
    steps: int,
) -> tuple[torch.Tensor, ...]:
    """The best candidates as trees: tokens, parents, depths, ancestors, each [rows, nodes]."""
    rows, num_candidates = candidates[0].shape
    width = triton.next_power_of_2(num_candidates)
    tree = root.new_empty(4, rows, nodes).unbind(0)
    kernel: Any = _select_kernel[(rows,)]
    kernel(
        root,
        *candidates,
        budgets,
        *tree,
        budgets.stride(0),
        candidates[0].stride(0),
        num_candidates,
        min(nodes - 1, num_candidates),
        nodes,
        max(steps, 1),
        CANDIDATES=max(_LEAST, width),
        NODES=max(_LEAST, triton.next_power_of_2(nodes)),
        PDL=overlap.is_on(root),
        num_warps=max(_num_warps(num_candidates), 1 if nodes <= _LEAST else 4),
        **overlap.options(root),
    )
    return tree


@triton.jit(do_not_specialize=range(3, 5), do_not_specialize_on_alignment=range(3))
def _chain_kernel(
    parents, depths, ancestors, num_items, nodes, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    item = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    node = (item % nodes).to(tl.int64)
    inside = item < num_items
    overlap.begin(PDL)
    tl.store(parents + item, node - 1, mask=inside)
    tl.store(depths + item, node, mask=inside)
    # All bits up to its own; node 63 sets the sign.
    own = tl.full([BLOCK], 1, tl.int64) << node
    tl.store(ancestors + item, own | (own - 1), mask=inside)


def chain_nodes(tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:  # [rows, nodes]
    """Parents, depths and ancestors where every node lies below the one before it."""
    parents, depths, ancestors = tokens.new_empty(3, *tokens.shape).unbind(0)
    kernel: Any = _chain_kernel[(triton.cdiv(tokens.numel(), 128),)]
    kernel(
        parents,
        depths,
        ancestors,
        tokens.numel(),
        tokens.shape[1],
        BLOCK=128,
        PDL=overlap.is_on(tokens),
        **overlap.options(tokens),
    )
    return parents, depths, ancestors


def _num_warps(width: int) -> int:
    """One warp reduces without waiting for others; a wide tile needs the registers of more."""
    return 1 if width <= 256 else 4 if width <= 1024 else 8
