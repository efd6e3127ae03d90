"""Shares of the rows of a ragged step, as in `share_nodes.py`, in two launches."""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.tree.candidates import Candidates
from outrider.ops.tree.share_nodes import share_nodes_reference
from outrider.ops.tree.tree_order_triton import (
    LEAST_TILE,
    MINUS_INFINITY,
    best_keys,
    num_warps_of,
    rank_of,
)

MOST_TILE = 1 << 14  # drafts of all rows that one program holds in registers
_FEW = 1024  # drafts that one warp holds: it counts without waiting for others
_SIGN = tl.constexpr(1 << 31)


@triton.jit(do_not_specialize=range(3, 7), do_not_specialize_on_alignment=range(3))
def _sort_kernel(
    scores,  # [rows, candidates]
    budgets,  # [3, rows]
    best,  # [rows, most] int64 written: 0, or the score as a positive integer of the same order
    budget_stride,
    candidate_stride,
    num_candidates,
    most,
    CANDIDATES: tl.constexpr,
    MOST: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    number, rank = tl.arange(0, CANDIDATES), tl.arange(0, MOST)
    inside = number < num_candidates
    overlap.begin(PDL)
    own_nodes = tl.load(budgets + 2 * budget_stride + row)
    score = tl.load(scores + row * candidate_stride + number, mask=inside, other=0.0)
    ordered = best_keys(rank_of(score, number, inside), most, MOST) >> 32
    is_allowed = (rank < own_nodes - 1) & (ordered > MINUS_INFINITY)
    tl.store(best + row * most + rank, tl.where(is_allowed, ordered + _SIGN, 0), mask=rank < most)


@triton.jit(do_not_specialize=range(3, 7), do_not_specialize_on_alignment=range(3))
def _share_kernel(
    best,  # [rows, most]
    budgets,  # [3, rows]
    shares,  # [3, rows] written
    budget_stride,
    rows,
    most,
    num_drafts,
    ROWS: tl.constexpr,
    MOST: tl.constexpr,
    PDL: tl.constexpr,
):
    row, rank = tl.arange(0, ROWS), tl.arange(0, MOST)
    inside = (row < rows)[:, None] & (rank < most)[None, :]
    overlap.begin(PDL)
    key = tl.load(best + row[:, None] * most + rank[None, :], mask=inside, other=0)
    # The score of the last draft, bit by bit: the largest that enough drafts reach.
    last = tl.zeros([], tl.int64)
    for bit in range(32):
        higher = last | (tl.full([], _SIGN, tl.int64) >> bit)
        num_reached = tl.sum(tl.sum((key >= higher).to(tl.int32), axis=1), axis=0)
        last = tl.where(num_reached >= num_drafts, higher, last)
    num_better = tl.sum((key > last).to(tl.int32), axis=1)
    num_equal = tl.sum(((key == last) & (key > 0)).to(tl.int32), axis=1)
    room = num_drafts - tl.sum(num_better, axis=0)
    before = tl.cumsum(num_equal, axis=0) - num_equal
    equal = tl.minimum(tl.maximum(room - before, 0), num_equal)
    is_row = row < rows
    for part in range(2):
        same = tl.load(budgets + part * budget_stride + row, mask=is_row, other=0)
        tl.store(shares + part * rows + row, same, mask=is_row)
    tl.store(shares + 2 * rows + row, (1 + num_better + equal).to(tl.int64), mask=is_row)


def share_nodes_triton(
    candidates: Candidates,
    budgets: torch.Tensor,  # [3, rows] int64
    *,
    most: int,
    num_drafts: int,
) -> torch.Tensor:  # [3, rows]
    """`share_nodes` in two launches; very large steps use the reference."""
    scores = candidates.scores
    rows, num_candidates = scores.shape
    most = min(most, num_candidates)
    row_tile, rank_tile = triton.next_power_of_2(rows), triton.next_power_of_2(most)
    if row_tile * rank_tile > MOST_TILE:
        return share_nodes_reference(candidates, budgets, most=most, num_drafts=num_drafts)
    best, shares = budgets.new_empty(rows, most), budgets.new_empty(3, rows)
    sort: Any = _sort_kernel[(rows,)]
    sort(
        scores,
        budgets,
        best,
        budgets.stride(0),
        scores.stride(0),
        num_candidates,
        most,
        CANDIDATES=max(LEAST_TILE, triton.next_power_of_2(num_candidates)),
        MOST=max(LEAST_TILE, rank_tile),
        PDL=overlap.is_on(scores),
        num_warps=num_warps_of(num_candidates),
        **overlap.options(scores),
    )
    share: Any = _share_kernel[(1,)]
    share(
        best,
        budgets,
        shares,
        budgets.stride(0),
        rows,
        most,
        num_drafts,
        ROWS=max(LEAST_TILE, row_tile),
        MOST=rank_tile,
        PDL=overlap.is_on(scores),
        num_warps=1 if row_tile * rank_tile <= _FEW else 8,
        **overlap.options(scores),
    )
    return shares
