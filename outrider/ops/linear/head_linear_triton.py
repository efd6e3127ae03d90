"""A linear layer with a weight per head: the kernel of `head_linear_reference`.

Every output is one sum over its inputs in ascending order, as in `linear_triton.py`: the bits of a
token depend on that token only.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap


@dataclass(frozen=True, slots=True)
class HeadTile:
    """Sizes of the tile of one block of threads, and how far ahead it loads."""

    rows: int
    columns: int
    depth: int
    stages: int
    num_warps: int = 4


@triton.jit
def _head_linear_kernel(
    x, weights, out, num_rows, K, N, x_row, x_head, w_head, w_in, w_out, out_row, out_head,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, IS_EVEN: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # Row tiles of one head run side by side: they read the same weights at about the same time.
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    head, depth = tl.program_id(2).to(tl.int64), tl.arange(0, DEPTH)
    is_row, is_column = row < num_rows, column < N
    x_at = x + head * x_head + row[:, None].to(tl.int64) * x_row + depth[None, :]
    w_at = weights + head * w_head + depth[:, None] * w_in + column[None, :] * w_out
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    overlap.begin(PDL)
    for k in range(0, K, DEPTH):
        if IS_EVEN:
            a = tl.load(x_at + k, mask=is_row[:, None], other=0.0)
            w = tl.load(w_at + k * w_in)
        else:
            inside = depth < K - k
            a = tl.load(x_at + k, mask=is_row[:, None] & inside[None, :], other=0.0)
            w = tl.load(w_at + k * w_in, mask=inside[:, None] & is_column[None, :], other=0.0)
        total = tl.dot(a, w, total, input_precision=PRECISION)
    at = out + head * out_head + row[:, None].to(tl.int64) * out_row + column[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


def head_linear_triton(
    x: torch.Tensor,  # [n, heads, in], unit stride along in
    weights: torch.Tensor,  # [heads, in, out], any strides
    out: torch.Tensor,  # [n, heads, out] written; unit stride along out
) -> None:
    """Multiply the vector of every head by the weight of that head."""
    num_rows, heads, depth = x.shape
    size = weights.shape[2]
    assert x.stride(2) == out.stride(2) == 1
    tile = choose_head_tile(num_rows, x.element_size())
    grid = triton.cdiv(num_rows, tile.rows), triton.cdiv(size, tile.columns), heads
    kernel: Any = _head_linear_kernel[grid]
    kernel(
        x, weights, out, num_rows, depth, size,
        x.stride(0), x.stride(1), *weights.stride(), out.stride(0), out.stride(1),
        ROWS=tile.rows, COLUMNS=tile.columns, DEPTH=tile.depth,
        IS_EVEN=size % tile.columns == 0 and depth % tile.depth == 0,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32", PDL=overlap.is_on(x),
        num_warps=tile.num_warps, num_stages=tile.stages, **overlap.options(x),
    )  # fmt: skip


def choose_head_tile(num_rows: int, itemsize: int) -> HeadTile:
    """Few rows are bound by reading weights, many by tensor cores."""
    if itemsize == 4:  # float32 is for tests, not for speed
        return HeadTile(rows=16, columns=32, depth=32, stages=2)
    if num_rows <= 64:
        rows = 16 if num_rows <= 16 else 32 if num_rows <= 32 else 64
        return HeadTile(rows, columns=64, depth=64, stages=3)
    return HeadTile(rows=128, columns=128, depth=64, stages=3, num_warps=8)
