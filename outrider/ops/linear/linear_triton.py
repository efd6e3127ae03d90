"""x W^T for few rows, as fast as weights can be read; and for many rows where neither
`specialized_linear_triton.py` nor `bulk_linear_triton.py` fits.

Every output is one sum over k in ascending order, sixteen products at a time, whatever the tile. On
tensor cores that makes the bits of a row independent of the tile and of the other rows (tested).
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops import gpu_facts
from outrider.ops.linear.bulk_linear_triton import (
    bulk_pays,
    choose_bulk_tile,
    fits_bulk,
    launch_bulk,
)
from outrider.ops.linear.dense_tile_triton import dense_product, finish_rows
from outrider.ops.linear.linear_limits import MOST_SKINNY_ROWS
from outrider.ops.linear.specialized_tiles_triton import (
    choose_specialized_tile,
    fits_specialized,
    specialized_pays,
)

_BAND = tl.constexpr(8)  # row tiles


@dataclass(frozen=True, slots=True)
class LinearTile:
    """Sizes of the tile of one block of threads, and how far ahead it loads."""

    rows: int
    columns: int
    depth: int
    stages: int
    num_warps: int = 4


@triton.jit
def _linear_kernel(
    x,  # [num_rows, K]
    weight,  # [N, K], or [2 N, K] when gated: gate, then up
    residual,  # [num_rows, N]
    out,  # [num_rows, N]
    num_rows,
    N,
    K,
    x_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,  # of the weight; half of them are outputs when gated
    DEPTH: tl.constexpr,
    IS_GATED: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    IS_EVEN: tl.constexpr,  # N and K are multiples of the tile
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    # Tensor cores take 64 rows of their first operand: that is the weight unless x has as many.
    SWAP: tl.constexpr = COLUMNS >= 64 and ROWS <= 64
    OUTPUTS: tl.constexpr = COLUMNS // 2 if IS_GATED else COLUMNS
    # Up to eight row tiles run side by side: they read the same weights at about the same time.
    column_tiles, row_tiles = tl.cdiv(N, OUTPUTS), tl.cdiv(num_rows, ROWS)
    band = tl.program_id(0) // (_BAND * column_tiles) * _BAND
    height = tl.minimum(row_tiles - band, _BAND)
    place = tl.program_id(0) - band * column_tiles
    first = place // height * OUTPUTS
    channel = tl.arange(0, COLUMNS)
    column = first + channel % OUTPUTS
    source = (column + (channel // OUTPUTS) * N).to(tl.int64)
    row = (band + place % height) * ROWS + tl.arange(0, ROWS)
    x_line = x + row.to(tl.int64) * x_stride
    is_row = row < num_rows
    is_column = column < N
    overlap.wait(PDL)
    total = dense_product(
        x_line, is_row, weight, source, is_column, K, DEPTH, SWAP, IS_EVEN, PRECISION
    )  # fmt: skip
    overlap.release(PDL)
    if SWAP:
        total = total.T
    finish_rows(total, residual, out, row, is_row, first, N, IS_GATED, HAS_RESIDUAL)


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # [n, in], [out, in] -> [n, out]
    """x W^T."""
    return _launch(x, weight, residual=x, has_residual=False, is_gated=False)


def linear_plus(
    x: torch.Tensor,  # [n, in]
    weight: torch.Tensor,  # [out, in]
    residual: torch.Tensor,  # [n, out] contiguous
) -> torch.Tensor:  # [n, out]
    """residual + x W^T, rounded once."""
    return _launch(x, weight, residual=residual, has_residual=True, is_gated=False)


def linear_swiglu(
    x: torch.Tensor,  # [n, in]
    weight: torch.Tensor,  # [2 * intermediate, in] gate, then up
) -> torch.Tensor:  # [n, intermediate]
    """silu(gate) * up of the two halves of x W^T, which are rounded first."""
    return _launch(x, weight, residual=x, has_residual=False, is_gated=True)


def _launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    residual: torch.Tensor,
    has_residual: bool,
    is_gated: bool,
) -> torch.Tensor:
    num_rows, (size, depth) = x.shape[0], weight.shape
    options = {"has_residual": has_residual, "is_gated": is_gated}
    if not is_gated and specialized_pays(num_rows, size, depth) and fits_specialized(x, weight):
        return _launch_specialized(x, weight, residual, has_residual)
    if bulk_pays(num_rows, size) and fits_bulk(x, weight):
        wide = choose_bulk_tile(num_rows, size, is_gated=is_gated)
        return launch_bulk(x, weight, residual, tile=wide, **options)
    tile = choose_linear_tile(num_rows, size, depth, x.element_size())
    tile = fitted(tile, x.element_size(), gpu_facts.shared_bytes(x))
    return launch_linear(x, weight, residual, tile=tile, **options)


def _launch_specialized(
    x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, has_residual: bool
) -> torch.Tensor:
    # Other versions of Triton may lack what this module imports.
    from outrider.ops.linear.specialized_linear_triton import launch_specialized

    tile = choose_specialized_tile(x.shape[0], weight.shape[0])
    return launch_specialized(x, weight, residual, tile=tile, has_residual=has_residual)


def launch_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    *,
    tile: LinearTile,
    has_residual: bool,
    is_gated: bool,
) -> torch.Tensor:
    """The product by tiles of this size; public for benchmarks that sweep over tiles."""
    num_rows, depth = x.shape
    size = weight.shape[0] // (2 if is_gated else 1)
    outputs = tile.columns // (2 if is_gated else 1)
    out = torch.empty((num_rows, size), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(size, outputs) * triton.cdiv(num_rows, tile.rows),)
    kernel: Any = _linear_kernel[grid]
    kernel(
        x,
        weight,
        residual,
        out,
        num_rows,
        size,
        depth,
        x.stride(0),
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        IS_GATED=is_gated,
        HAS_RESIDUAL=has_residual,
        IS_EVEN=size % outputs == 0 and depth % tile.depth == 0,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        PDL=overlap.is_on(x),
        num_stages=tile.stages,
        num_warps=tile.num_warps,
        **overlap.options(x),
    )
    return out


def fitted(tile: LinearTile, itemsize: int, shared: int) -> LinearTile:
    """The tile with as many stages as shared memory of so many bytes has room for."""
    # One more stage is in registers, except on Hopper, where every tile named here fits anyway.
    most = 1 + shared // ((tile.rows + tile.columns) * tile.depth * itemsize)
    return tile if tile.stages <= most else replace(tile, stages=most)


def choose_linear_tile(num_rows: int, size: int, depth: int, itemsize: int) -> LinearTile:
    """Measured on an H200 at the shapes of Llama-3.1-8B and SmolLM2-135M (docs/lab/log.md)."""
    if itemsize == 4:  # float32 is for tests, not for speed
        return LinearTile(rows=16 if num_rows <= 16 else 64, columns=32, depth=32, stages=2)
    if num_rows > MOST_SKINNY_ROWS:
        if size >= 16384:
            return LinearTile(rows=128, columns=256, depth=64, stages=4, num_warps=8)
        if num_rows > 128:
            return LinearTile(rows=128, columns=128, depth=64, stages=4, num_warps=8)
        return LinearTile(rows=64, columns=64, depth=128 if depth % 128 == 0 else 64, stages=4)
    rows = 16 if num_rows <= 16 else 32 if num_rows <= 32 else 64
    is_wide = size >= 16384  # enough tiles of any width to fill the GPU
    if rows == 64:
        if is_wide:
            return LinearTile(rows, columns=64, depth=64, stages=3)
        if size >= 6144 and depth % 128 == 0:
            return LinearTile(rows, columns=64, depth=128, stages=5)
        return LinearTile(rows, columns=32, depth=128 if depth % 128 == 0 else 64, stages=6)
    if is_wide:
        if depth % 128:
            return LinearTile(rows, columns=64, depth=64, stages=3)
        return LinearTile(rows, columns=64, depth=128, stages=4)
    if depth < 2048:  # small weights are bound by latency, not bandwidth: load them at once
        if depth <= 640:
            return LinearTile(rows, columns=64, depth=128, stages=5)
        return LinearTile(rows, columns=16, depth=512, stages=3, num_warps=2)
    deep = 256 if depth % 256 == 0 else 64
    if depth >= 8192:
        return LinearTile(rows, columns=32, depth=deep, stages=6 if rows == 16 else 4)
    return LinearTile(rows, columns=64, depth=deep, stages=4)
