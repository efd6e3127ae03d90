"""x W^T for many rows, by tiles whose operands the tensor memory accelerator (TMA) loads.

Weights are the first operand of tensor cores, so the rows of a tile need not be a power of two:
192 rows are two products, of 128 and 64. Sums have the bits of `linear_triton.py`.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from outrider.ops import dependent_launch as overlap
from outrider.ops import gpu_facts
from outrider.ops.linear.swiglu_triton import swiglu_of

DEPTH = 64  # of a tile: the channels that TMA lays out at once
MOST_SHARED = 220 << 10  # bytes of all stages of a tile; some GPUs with TMA have 99 KiB
_LINE = 16  # bytes: the alignment of what TMA loads
_FIRST_WITH_ONE = (9, 0)  # compute capability
_DEPTH = tl.constexpr(DEPTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkTile:
    """Sizes of the tile of one block of threads, and how far ahead it loads."""

    rows: int
    more: int = 0  # rows of a second product
    columns: int  # of the weight; half of them are outputs when gated
    stages: int
    num_warps: int = 8


@triton.jit
def _product(weight, x, total, PRECISION: tl.constexpr):
    return tl.dot(weight, x.T, total, input_precision=PRECISION)


@triton.jit
def _finish(
    total, up, residual, out, row, column, num_rows, N,
    IS_GATED: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
):  # fmt: skip
    """Gate or add, round once and store."""
    if IS_GATED:
        total = swiglu_of(total, up, out.dtype.element_ty)
    at = row[:, None].to(tl.int64) * N + column[None, :]
    inside = (row < num_rows)[:, None] & (column < N)[None, :]
    total = total.T
    if HAS_RESIDUAL:
        total += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _bulk_kernel(
    x,  # [num_rows, K] descriptor, in boxes of ROWS
    rest,  # the same in boxes of MORE
    weight,  # [N, K], or [2 N, K] when gated: gate, then up
    residual,  # [num_rows, N]
    out,  # [num_rows, N]
    num_rows,
    N,
    K,
    ROWS: tl.constexpr,
    MORE: tl.constexpr,
    OUTPUTS: tl.constexpr,
    IS_GATED: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    # Row tiles of the same weights run side by side.
    row_tiles = tl.cdiv(num_rows, ROWS + MORE)
    first = tl.program_id(0) % row_tiles * (ROWS + MORE)
    column = tl.program_id(0) // row_tiles * OUTPUTS
    total = tl.zeros((OUTPUTS, ROWS), tl.float32)
    up, total_rest, up_rest = total, total, total
    if MORE:
        total_rest = tl.zeros((OUTPUTS, MORE), tl.float32)
        up_rest = total_rest
    overlap.wait(PDL)
    for k in range(0, K, _DEPTH):
        w = weight.load([column, k])
        a = x.load([first, k])
        total = _product(w, a, total, PRECISION)
        if MORE:
            b = rest.load([first + ROWS, k])
            total_rest = _product(w, b, total_rest, PRECISION)
        if IS_GATED:
            w = weight.load([N + column, k])
            up = _product(w, a, up, PRECISION)
            if MORE:
                up_rest = _product(w, b, up_rest, PRECISION)
    overlap.release(PDL)
    columns, row = column + tl.arange(0, OUTPUTS), first + tl.arange(0, ROWS)
    _finish(total, up, residual, out, row, columns, num_rows, N, IS_GATED, HAS_RESIDUAL)
    if MORE:
        row = first + ROWS + tl.arange(0, MORE)
        _finish(
            total_rest, up_rest, residual, out, row, columns, num_rows, N, IS_GATED, HAS_RESIDUAL
        )  # fmt: skip


def fits_bulk(x: torch.Tensor, weight: torch.Tensor) -> bool:  # [n, in], [out, in]
    """Whether the device has TMA and enough shared memory, and both operands are aligned."""
    return (
        x.is_cuda
        and x.element_size() == 2
        and gpu_facts.capability(x) >= _FIRST_WITH_ONE
        and gpu_facts.shared_bytes(x) >= MOST_SHARED
        and all(_is_aligned(each) for each in (x, weight))
    )


def bulk_pays(num_rows: int, size: int) -> bool:
    """Whether these tiles are faster. Few short rows would leave most of a GPU idle."""
    return num_rows > (96 if size < 6144 else 64)


def _is_aligned(matrix: torch.Tensor) -> bool:
    row, size = matrix.stride(0), matrix.element_size()
    return matrix.stride(1) == 1 and matrix.data_ptr() % _LINE == 0 == row * size % _LINE


def choose_bulk_tile(num_rows: int, size: int, *, is_gated: bool = False) -> BulkTile:
    """Measured on an H200 at the shapes of Llama-3.1-8B (docs/lab/log.md)."""
    # A gated tile has half as many outputs as columns, and tensor cores take at least 64.
    is_wide = size >= 16384 or is_gated
    if num_rows <= 128:
        rows, more = (64, 32) if num_rows <= 96 else (128, 0)
        if is_wide:
            return BulkTile(rows=rows, more=more, columns=128, stages=3, num_warps=4)
        return BulkTile(rows=rows, more=more, columns=64, stages=8, num_warps=4)
    if is_wide and (num_rows <= 160 or 256 < num_rows <= 320):
        # Two tiles on a core: one loads while the other ends.
        return BulkTile(rows=128, more=32, columns=128, stages=3, num_warps=4)
    if num_rows <= 192:
        if is_wide:
            return BulkTile(rows=128, more=64, columns=128, stages=5, num_warps=4)
        return BulkTile(rows=128, more=64, columns=64, stages=6, num_warps=4)
    if is_wide or num_rows > 1024:
        return BulkTile(rows=128, columns=256, stages=4, num_warps=8)
    return BulkTile(rows=128, more=64, columns=128 if size >= 6144 else 64, stages=5, num_warps=4)


def launch_bulk(
    x: torch.Tensor,  # [n, in]
    weight: torch.Tensor,  # [out, in], or [2 * out, in] when gated: gate, then up
    residual: torch.Tensor,  # [n, out] contiguous
    *,
    tile: BulkTile,
    has_residual: bool,
    is_gated: bool,
) -> torch.Tensor:  # [n, out]
    """The product by tiles of this size, of operands that fit; public for benchmarks."""
    (num_rows, depth), parts = x.shape, 2 if is_gated else 1
    size, outputs = weight.shape[0] // parts, tile.columns // parts
    out = torch.empty((num_rows, size), dtype=x.dtype, device=x.device)
    row_tiles = triton.cdiv(num_rows, tile.rows + tile.more)
    kernel: Any = _bulk_kernel[(triton.cdiv(size, outputs) * row_tiles,)]
    kernel(
        TensorDescriptor.from_tensor(x, [tile.rows, DEPTH]),
        TensorDescriptor.from_tensor(x, [tile.more or tile.rows, DEPTH]),
        TensorDescriptor.from_tensor(weight, [outputs, DEPTH]),
        residual,
        out,
        num_rows,
        size,
        depth,
        ROWS=tile.rows,
        MORE=tile.more,
        OUTPUTS=outputs,
        IS_GATED=is_gated,
        HAS_RESIDUAL=has_residual,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        PDL=overlap.is_on(x),
        num_stages=tile.stages,
        num_warps=tile.num_warps,
        **overlap.options(x),
    )
    return out
