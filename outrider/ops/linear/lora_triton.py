"""LoRA of every row's own adapter: the kernels of `add_lora_reference_`.

Rows are sorted by slot, so most tiles have rows of one adapter and read its matrices once. A tile
with several adapters computes one after the other. Inputs are divided into slices by their number
alone, and slices are added in order: the bits of a row depend on that row and its adapter.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

_ROWS = 16  # the least that tensor cores take
_RANK = 16
_COLUMNS = 64
_DEPTH = 64
_SLICE = 512  # inputs that one program of the first product sums


@triton.jit
def _tile_slots(order, slots, num_rows, ROWS: tl.constexpr):
    """The rows of a tile, their slots (0 past the end), and the range of its adapters."""
    place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = place < num_rows
    row = tl.load(order + place, mask=is_row, other=0)
    slot = tl.load(slots + row, mask=is_row, other=0)
    first = tl.min(tl.where(slot > 0, slot, 1 << 30), axis=0)
    return row, slot, first, tl.max(slot, axis=0) + 1


@triton.jit
def _shrink_kernel(
    x, order, slots, a, low, num_rows, K, R, x_row, slice_size,
    ROWS: tl.constexpr, RANK: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A x: one slice of the inputs, for every row with an adapter."""
    row, slot, first, last = _tile_slots(order, slots, num_rows, ROWS)
    rank, depth = tl.program_id(1) * RANK + tl.arange(0, RANK), tl.arange(0, DEPTH)
    begin = tl.program_id(2) * slice_size
    end = tl.minimum(begin + slice_size, K)
    total = tl.zeros((ROWS, RANK), tl.float32)
    for each in range(first, last):
        is_own = slot == each
        own = a + tl.full((), each, tl.int64) * R * K
        part = tl.zeros((ROWS, RANK), tl.float32)
        for k in range(begin, end, DEPTH):
            inside = k + depth < end
            x_at = x + row[:, None] * x_row + k + depth[None, :]
            values = tl.load(x_at, mask=is_own[:, None] & inside[None, :], other=0.0)
            a_at = own + rank[None, :] * K + k + depth[:, None]
            weights = tl.load(a_at, mask=(rank < R)[None, :] & inside[:, None], other=0.0)
            part = tl.dot(values, weights, part, input_precision=PRECISION)
        total = tl.where(is_own[:, None], part, total)
    at = low + (tl.program_id(2).to(tl.int64) * num_rows + row[:, None]) * R + rank[None, :]
    tl.store(at, total, mask=(slot > 0)[:, None] & (rank < R)[None, :])


@triton.jit
def _expand_kernel(
    low, order, slots, b, out, num_rows, R, N, out_row, num_slices,
    ROWS: tl.constexpr, RANK: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add B times the sum of the slices, for every row with an adapter."""
    row, slot, first, last = _tile_slots(order, slots, num_rows, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for each in range(first, last):
        is_own = slot == each
        own = b + tl.full((), each, tl.int64) * N * R
        part = tl.zeros((ROWS, COLUMNS), tl.float32)
        for r in range(0, R, RANK):
            rank = r + tl.arange(0, RANK)
            is_value = is_own[:, None] & (rank < R)[None, :]
            values = tl.zeros((ROWS, RANK), tl.float32)
            for piece in range(num_slices):
                at = low + (piece * num_rows + row[:, None]).to(tl.int64) * R + rank[None, :]
                values += tl.load(at, mask=is_value, other=0.0)
            b_at = own + column[None, :] * R + rank[:, None]
            weights = tl.load(b_at, mask=(column < N)[None, :] & (rank < R)[:, None], other=0.0)
            part = tl.dot(values.to(b.dtype.element_ty), weights, part, input_precision=PRECISION)
        total = tl.where(is_own[:, None], part, total)
    at = out + row[:, None] * out_row + column[None, :]
    is_written = (slot > 0)[:, None] & (column < N)[None, :]
    before = tl.load(at, mask=is_written, other=0.0).to(tl.float32)
    tl.store(at, (before + total).to(out.dtype.element_ty), mask=is_written)


def add_lora_triton_(
    out: torch.Tensor,  # [n, out] written; unit stride along out
    x: torch.Tensor,  # [n, in], unit stride along in
    slots: torch.Tensor,  # [n] int64
    order: torch.Tensor,  # [n] int64 rows by ascending slot
    a: torch.Tensor,  # [slots, rank, in] contiguous
    b: torch.Tensor,  # [slots, out, rank] contiguous
) -> None:
    """Add B A x of each row's adapter. Rows of slot 0 are not touched."""
    (num_rows, inputs), (_, outputs, rank) = x.shape, b.shape
    assert x.stride(1) == out.stride(1) == 1
    if not num_rows:
        return
    num_slices = triton.cdiv(inputs, _SLICE)
    low = torch.empty(num_slices, num_rows, rank, dtype=torch.float32, device=x.device)
    precision = "ieee" if x.dtype == torch.float32 else "tf32"
    tiles = triton.cdiv(num_rows, _ROWS)
    shrink: Any = _shrink_kernel[(tiles, triton.cdiv(rank, _RANK), num_slices)]
    shrink(
        x, order, slots, a, low, num_rows, inputs, rank, x.stride(0), _SLICE,
        ROWS=_ROWS, RANK=_RANK, DEPTH=_DEPTH, PRECISION=precision,
    )  # fmt: skip
    expand: Any = _expand_kernel[(tiles, triton.cdiv(outputs, _COLUMNS))]
    expand(
        low, order, slots, b, out, num_rows, rank, outputs, out.stride(0), num_slices,
        ROWS=_ROWS, RANK=_RANK, COLUMNS=_COLUMNS, PRECISION=precision,
    )  # fmt: skip
