"""x W^T for quantised weights of any number of rows, with the epilogues of `linear_triton.py`.

The inputs of a narrow weight are summed in a few slices, and the sums of slices are added in order.
The shape of the weight alone decides on slices, so they change no bit between batches. Up to 8 rows
a block of threads has a warp for every slice. For more rows every slice has a block of threads, and
the last of them to finish adds all. For many rows one block sums slice after slice. Large weights
on a Hopper are multiplied by warps that take turns, in `turns_linear_triton.py`.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops import gpu_facts
from outrider.ops.linear.code_values_triton import has_assembly
from outrider.ops.linear.dense_tile_triton import finish_rows
from outrider.ops.linear.kernel_weight import BLOCK, KernelWeight
from outrider.ops.linear.quantised_product_triton import (
    add_slices,
    quantised_product,
    weight_arguments,
)
from outrider.ops.linear.turns_tiles_triton import (
    TurnsTile,
    choose_turns_tile,
    fits_turns,
    num_counters,
    turns_pay,
)

MOST_SLICES = 8
MOST_SPLIT_ROWS = 128  # above, one block of threads sums all slices of a tile
_ENOUGH_TILES = 256  # of 64 outputs: two for each core
_LEAST_SLICE = 512  # inputs
_TILE = 64  # outputs
_FEW_ROWS = 8  # up to here the slices of a tile are summed side by side
_WARPS = (2, 4, 8)  # of a block of threads: a slice each
_NARROW, _WIDE = 4096, 16384  # outputs


@dataclass(frozen=True, slots=True)
class QuantisedTile:
    """Sizes of the tile of one block of threads, and how far ahead it loads."""

    rows: int
    columns: int
    stages: int
    num_warps: int = 4
    slices: int = 1  # of the inputs, all of them or one; a warp sums each


@triton.jit(do_not_specialize=["num_rows", "num_slices"])
def _quantised_kernel(
    x,  # [num_rows, K]
    codes,  # [N, K], or [2 N, K] when gated: gate, then up; see `kernel_weight.py`
    words,
    zeros,
    factors,
    residual,  # [num_rows, N]
    out,  # [num_rows, N]
    partial,  # [tiles, slices, COLUMNS, ROWS] float32
    arrivals,  # [tiles] int32 zeros
    num_rows,
    N,
    K,
    x_stride,
    slice_size,
    num_slices,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,  # of the weight; half of them are outputs when gated
    SLICES: tl.constexpr,  # that a block of threads sums side by side, by a warp each
    IS_WHOLE: tl.constexpr,  # a block of threads sums that many; else all, one after another
    IS_SPLIT: tl.constexpr,  # there are several, whose sums are added by the last
    IS_GATED: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    IS_EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
    COMPILED: tl.constexpr,
    KIND: tl.constexpr,
    GROUP: tl.constexpr,
    FORM: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_FACTORS: tl.constexpr,
):
    OUTPUTS: tl.constexpr = COLUMNS // 2 if IS_GATED else COLUMNS
    column_tiles, row_tiles = tl.cdiv(N, OUTPUTS), tl.cdiv(num_rows, ROWS)
    tiles = column_tiles * row_tiles
    tile, piece = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    first = tile // row_tiles * OUTPUTS
    channel = tl.arange(0, SLICES * COLUMNS) % COLUMNS
    column = first + channel % OUTPUTS
    line = (column + channel // OUTPUTS * N).to(tl.int64)
    num_lines, is_column = N * 2 if IS_GATED else N, column < N
    row = tile % row_tiles * ROWS + tl.arange(0, ROWS)
    x_line, is_row = x + row.to(tl.int64) * x_stride, row < num_rows
    overlap.wait(PDL)
    total = tl.zeros((COLUMNS, ROWS), tl.float32)
    if IS_WHOLE:
        begin = piece * slice_size
        size = slice_size if SLICES > 1 else tl.minimum(slice_size, K - begin)
        total = quantised_product(
            x_line, is_row, codes, words, zeros, factors, line, is_column, num_lines,
            begin, size, K, SLICES,
            IS_EVEN, PRECISION, KIND, GROUP, FORM, HAS_ZEROS, HAS_FACTORS, COMPILED,
        )  # fmt: skip
    else:
        for begin in range(0, K, slice_size):
            total += quantised_product(
                x_line, is_row, codes, words, zeros, factors, line, is_column, num_lines,
                begin, tl.minimum(slice_size, K - begin), K, 1,
                IS_EVEN, PRECISION, KIND, GROUP, FORM, HAS_ZEROS, HAS_FACTORS, COMPILED,
            )  # fmt: skip
    if IS_SPLIT:
        cell = tl.arange(0, COLUMNS)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
        at = partial + tile.to(tl.int64) * num_slices * (COLUMNS * ROWS) + cell
        tl.store(at + piece * (COLUMNS * ROWS), total)
        tl.debug_barrier()  # all threads have stored before one of them says so
        is_last = tl.atomic_add(arrivals + tile, 1, sem="acq_rel") == num_slices - 1
        overlap.release(PDL)
        if not is_last:
            return
        tl.store(arrivals + tile, 0)
        total = tl.load(at, cache_modifier=".cg")
        for each in range(1, num_slices):
            total += tl.load(at + each * (COLUMNS * ROWS), cache_modifier=".cg")
    else:
        overlap.release(PDL)
        total = add_slices(total, SLICES)
    finish_rows(total.T, residual, out, row, is_row, first, N, IS_GATED, HAS_RESIDUAL)


def multiply_quantised(
    x: torch.Tensor,  # [n, in] in the order of codes
    weight: KernelWeight,  # [out, in], or [2 * out, in] when gated
    residual: torch.Tensor,  # [n, out] contiguous; any tensor if there is none
    arrivals: torch.Tensor,  # from `no_arrivals`
    *,
    has_residual: bool = False,
    is_gated: bool = False,
    tile: QuantisedTile | TurnsTile | None = None,
) -> torch.Tensor:  # [n, out]
    """x W^T, residual + x W^T, or SwiGLU of its halves; `tile` is for benchmarks that sweep."""
    if tile is None and takes_turns(x, weight, is_gated=is_gated):
        tile = choose_turns_tile(len(x), weight, has_residual=has_residual)
    if not isinstance(tile, TurnsTile):
        tile = tile or choose_tile(len(x), weight, x)
        return _multiply_by_slices(x, weight, residual, arrivals, tile, has_residual, is_gated)
    from outrider.ops.linear.turns_linear_triton import launch_turns  # needs one version of Triton

    slices, slice_size = slices_of(*weight.shape)
    return launch_turns(
        x, weight, residual, arrivals,
        tile=tile, slices=slices, slice_size=slice_size,
        has_residual=has_residual, is_gated=is_gated,
    )  # fmt: skip


def takes_turns(x: torch.Tensor, weight: KernelWeight, *, is_gated: bool) -> bool:
    """Whether a product is one of warps that take turns."""
    _, slice_size = slices_of(*weight.shape)
    pays = turns_pay(len(x), weight, slice_size=slice_size)
    return pays and fits_turns(x, weight, is_gated=is_gated)


def _multiply_by_slices(
    x: torch.Tensor,
    weight: KernelWeight,
    residual: torch.Tensor,
    arrivals: torch.Tensor,
    tile: QuantisedTile,
    has_residual: bool,
    is_gated: bool,
) -> torch.Tensor:  # [n, out]
    (num_rows, inputs), lines = x.shape, weight.shape[0]
    size, outputs = (lines // 2, tile.columns // 2) if is_gated else (lines, tile.columns)
    slices, slice_size = slices_of(*weight.shape)
    tiles = triton.cdiv(size, outputs) * triton.cdiv(num_rows, tile.rows)
    assert tile.slices in (1, slices), "all slices of a tile, or one"
    is_split = slices > tile.slices and num_rows <= min(MOST_SPLIT_ROWS, tile.rows)
    out = torch.empty((num_rows, size), dtype=x.dtype, device=x.device)
    cells = tiles * slices * tile.columns * tile.rows if is_split else 0
    kernel: Any = _quantised_kernel[(tiles * (slices if is_split else 1),)]
    kernel(
        x=x, residual=residual, out=out, arrivals=arrivals,
        partial=torch.empty(cells, dtype=torch.float32, device=x.device),
        num_rows=num_rows, N=size, K=inputs, x_stride=x.stride(0),
        slice_size=slice_size, num_slices=slices,
        ROWS=tile.rows, COLUMNS=tile.columns, SLICES=tile.slices,
        IS_WHOLE=is_split or slices == tile.slices,
        IS_SPLIT=is_split,
        IS_GATED=is_gated,
        HAS_RESIDUAL=has_residual,
        IS_EVEN=size % outputs == 0 and inputs % (BLOCK * tile.slices) == 0,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        PDL=overlap.is_on(x), COMPILED=has_assembly(x),
        num_stages=tile.stages, num_warps=tile.num_warps,
        **weight_arguments(weight),
        **overlap.options(x),
    )  # fmt: skip
    return out


def no_arrivals(weight: KernelWeight) -> torch.Tensor:
    """Counters of the slices of every tile that have been summed. A product leaves them zero.

    Warps that take turns need most of them. The other kernel needs one for 32 lines at most.
    """
    most = num_counters(weight.shape[0])
    return torch.zeros(most, dtype=torch.int32, device=weight.codes.device)


def slices_of(outputs: int, inputs: int) -> tuple[int, int]:
    """Number and inputs of the slices of a weight: as few as fill the cores with few rows."""
    num, tiles = 1, -(-outputs // _TILE)
    while num < MOST_SLICES and tiles < _ENOUGH_TILES and inputs >= 2 * num * _least_slice(num):
        num *= 2
    size = triton.cdiv(triton.cdiv(inputs, BLOCK), num) * BLOCK
    return triton.cdiv(inputs, size), size


def _least_slice(num: int) -> int:
    """Inputs that a slice must have, to cut so many in two. More slices than four are long ones."""
    return _LEAST_SLICE if num < 4 else 2 * _LEAST_SLICE


def choose_tile(num_rows: int, weight: KernelWeight, x: torch.Tensor) -> QuantisedTile:
    """Measured on an H200 at the shapes of Llama-3.1-8B (docs/lab/log.md)."""
    if x.element_size() == 4:  # float32 is for tests, not for speed
        return QuantisedTile(16, 32, stages=2)
    slices, _ = slices_of(*weight.shape)
    if num_rows <= _FEW_ROWS and gpu_facts.is_tested_hopper(x):
        if slices in _WARPS:
            return QuantisedTile(8, 16, stages=3, num_warps=slices, slices=slices)
        if weight.kind in ("int4", "e2m1") and weight.shape[0] >= _WIDE:
            return QuantisedTile(8, 32, stages=6, num_warps=1)
    tile = _tile_of_rows(num_rows, weight)
    each = weight.codes[0, 0, 0].nbytes * tile.columns + BLOCK * x.element_size() * tile.rows
    return replace(tile, stages=min(tile.stages, max(1, gpu_facts.shared_bytes(x) // each)))


def _tile_of_rows(num_rows: int, weight: KernelWeight) -> QuantisedTile:
    is_wide = weight.shape[0] >= _WIDE
    if num_rows <= 16:
        return QuantisedTile(16, 64, stages=3)
    if num_rows <= 32:
        return QuantisedTile(32, 64, stages=3)
    if num_rows <= 64:
        if is_wide:
            return _eight_warps(64, 256 if weight.kind in ("e4m3", "int8") else 128)
        is_narrow = weight.shape[0] <= _NARROW
        return _eight_warps(64, 128) if is_narrow else QuantisedTile(64, 64, stages=3)
    return _eight_warps(128, 128) if weight.kind == "wide" else QuantisedTile(128, 64, stages=3)


def _eight_warps(rows: int, columns: int) -> QuantisedTile:
    return QuantisedTile(rows, columns, stages=3, num_warps=8)
