"""The best candidates as draft trees, as in `select_nodes.py`: one program per row.

Scores are float32, everything else is int64.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.tree.candidates import Candidates, SelectedTree
from outrider.ops.tree.draft_tree import DraftTree
from outrider.ops.tree.tree_order_triton import (
    LEAST_TILE,
    MINUS_INFINITY,
    best_keys,
    num_warps_of,
    number_of,
    rank_of,
)
from outrider.wire.draft_budget import Budget

# By argument index. Views into packed buffers have any alignment, and sizes change with the step:
# neither may compile the kernel again.
_POINTERS, _SIZES = range(10), range(10, 16)


@triton.jit(do_not_specialize=_SIZES, do_not_specialize_on_alignment=_POINTERS)
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
    node_numbers,
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
    best = best_keys(rank_of(score, number, inside), num_drafts, NODES)

    # Node n is the n-th smallest of the chosen numbers; absent nodes have the largest number.
    channel = tl.arange(0, NODES)
    is_chosen = (channel < num_drafts) & (channel < own_nodes - 1) & ((best >> 32) > MINUS_INFINITY)
    chosen = tl.where(is_chosen, number_of(best), num_candidates)
    chosen = tl.sort(tl.where(channel == NODES - 1, -1, chosen))  # node 0 has number -1
    is_present = (chosen >= 0) & (chosen < num_candidates)
    token = tl.load(tokens + base + chosen, mask=is_present, other=-1)
    token = tl.where(channel == 0, tl.load(root + row), token)
    above = tl.load(parents + base + chosen, mask=is_present, other=-1)
    is_smaller = chosen[None, :] < above[:, None]  # [NODES, NODES]
    parent = tl.sum(is_smaller.to(tl.int32), axis=1)  # the index of the parent's number
    parent = tl.where(above >= 0, parent, 0)

    own_bit = tl.full([NODES], 1, tl.int64) << channel.to(tl.int64)
    ancestors = own_bit
    depth = tl.zeros([NODES], tl.int64)
    for _ in range(steps):  # each pass reaches one level deeper
        ancestors = own_bit | tl.gather(ancestors, parent, axis=0)
        depth = tl.where(channel == 0, 0, tl.gather(depth, parent, axis=0) + 1)
    is_node = channel < nodes
    goal = row * nodes + channel
    tl.store(node_tokens + goal, token, mask=is_node)
    tl.store(node_parents + goal, tl.where(channel == 0, -1, parent).to(tl.int64), mask=is_node)
    tl.store(node_depths + goal, depth, mask=is_node)
    tl.store(node_ancestors + goal, ancestors, mask=is_node)
    tl.store(node_numbers + goal, tl.where(is_present, chosen, -1).to(tl.int64), mask=is_node)


def select_nodes_triton(
    root: torch.Tensor,  # [rows]
    candidates: Candidates,
    budgets: torch.Tensor,  # [3, rows]
    tree: Budget,
) -> SelectedTree:
    """`select_nodes` in one launch."""
    rows, num_candidates = candidates.scores.shape
    nodes = tree.nodes
    tokens, parents, depths, ancestors, numbers = root.new_empty(5, rows, nodes).unbind(0)
    kernel: Any = _select_kernel[(rows,)]
    kernel(
        root,
        candidates.scores,
        candidates.tokens,
        candidates.parents,
        budgets,
        tokens,
        parents,
        depths,
        ancestors,
        numbers,
        budgets.stride(0),
        candidates.scores.stride(0),
        num_candidates,
        min(nodes - 1, num_candidates),
        nodes,
        max(tree.steps, 1),
        CANDIDATES=max(LEAST_TILE, triton.next_power_of_2(num_candidates)),
        NODES=max(LEAST_TILE, triton.next_power_of_2(nodes)),
        PDL=overlap.is_on(root),
        num_warps=max(num_warps_of(num_candidates), 1 if nodes <= LEAST_TILE else 4),
        **overlap.options(root),
    )
    selected = DraftTree(tokens=tokens, parents=parents, depths=depths, ancestors=ancestors)
    return SelectedTree(tree=selected, numbers=numbers)
