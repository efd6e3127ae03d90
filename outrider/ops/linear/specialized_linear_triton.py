"""x W^T for many rows by specialised warps: one loads tiles, four multiply them. For Hopper.

Weights do not depend on the kernel before, so the loading warp requests the first of them before it
waits for that kernel. It is never held up by products or by the epilogue. Sums have the bits of
`linear_triton.py`. Gluon is the language of Triton in which layouts and barriers are explicit.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from outrider.ops import dependent_launch as overlap
from outrider.ops import gpu_facts
from outrider.ops.linear.specialized_tiles_triton import SpecializedTile

_LOADING_REGISTERS = gl.constexpr(40)  # per thread of the loading warp


@gluon.jit
def _load_rows(x, rest, x_tiles, rest_tiles, full, slot, row, k, MORE: gl.constexpr):
    tma.async_copy_global_to_shared(x, [row, k], full.index(slot), x_tiles.index(slot))
    if MORE:
        place = [row + x_tiles.shape[1], k]
        tma.async_copy_global_to_shared(rest, place, full.index(slot), rest_tiles.index(slot))


@gluon.jit
def _load_tiles(
    x, rest, weight, w_tiles, x_tiles, rest_tiles, full, free, num_rows, K, num_tiles,
    MORE: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """The loading warp: fill every slot once, then each slot again when it is free."""
    SLOTS: gl.constexpr = w_tiles.shape[0]
    COLUMNS: gl.constexpr = w_tiles.shape[1]
    DEPTH: gl.constexpr = w_tiles.shape[2]
    ROWS: gl.constexpr = x_tiles.shape[1] + MORE
    BYTES: gl.constexpr = (COLUMNS + ROWS) * DEPTH * 2
    row_tiles, steps = gl.cdiv(num_rows, ROWS), gl.cdiv(K, DEPTH)
    tile = gl.program_id(0)
    column = tile // row_tiles * COLUMNS
    for slot in range(SLOTS):
        mbarrier.expect(full.index(slot), BYTES)
        place = [column, slot * DEPTH]
        tma.async_copy_global_to_shared(weight, place, full.index(slot), w_tiles.index(slot))
    overlap.wait(PDL)
    row = tile % row_tiles * ROWS
    for slot in range(SLOTS):
        _load_rows(x, rest, x_tiles, rest_tiles, full, slot, row, slot * DEPTH, MORE)
    slot, phase, first = 0, 0, SLOTS
    while tile < num_tiles:
        row, column = tile % row_tiles * ROWS, tile // row_tiles * COLUMNS
        for step in range(first, steps):
            mbarrier.wait(free.index(slot), phase)
            mbarrier.expect(full.index(slot), BYTES)
            place = [column, step * DEPTH]
            tma.async_copy_global_to_shared(weight, place, full.index(slot), w_tiles.index(slot))
            _load_rows(x, rest, x_tiles, rest_tiles, full, slot, row, step * DEPTH, MORE)
            slot += 1
            if slot == SLOTS:
                slot, phase = 0, phase ^ 1
        first = 0
        tile += gl.num_programs(0)


@gluon.jit
def _wait_for_products(total, total_rest, PENDING: gl.constexpr, HAS_REST: gl.constexpr):
    """Both sums, when all but the last `PENDING` steps are in them."""
    if HAS_REST:
        total, total_rest = warpgroup_mma_wait(2 * PENDING, deps=[total, total_rest])
    else:
        total = warpgroup_mma_wait(PENDING, deps=[total])
    return total, total_rest


@gluon.jit
def _store(total, residual, out, first, column, num_rows, N, HAS_RESIDUAL: gl.constexpr):
    """Add the residual, round once and store sums [columns, rows] as rows."""
    COLUMNS: gl.constexpr = total.shape[0]
    THREADS: gl.constexpr = COLUMNS // 8  # of a row; each stores 16 bytes
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 // THREADS, THREADS], [4, 1], [1, 0])
    if not HAS_RESIDUAL:
        total = total.to(out.dtype.element_ty)  # half as much to move between threads
    total = gl.convert_layout(gl.permute(total, (1, 0)), layout)
    row = first + gl.arange(0, total.shape[0], layout=gl.SliceLayout(1, layout))
    column += gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, layout))
    at = row[:, None].to(gl.int64) * N + column[None, :]
    inside = (row < num_rows)[:, None] & (column < N)[None, :]
    if HAS_RESIDUAL:
        total += gl.load(residual + at, mask=inside, other=0.0).to(gl.float32)
    gl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@gluon.jit
def _multiply_tiles(
    w_tiles, x_tiles, rest_tiles, full, free, residual, out, num_rows, N, K, num_tiles,
    MORE: gl.constexpr, HAS_RESIDUAL: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """The other warps: one sum over k in ascending order for every output."""
    SLOTS: gl.constexpr = w_tiles.shape[0]
    COLUMNS: gl.constexpr = w_tiles.shape[1]
    ROWS: gl.constexpr = x_tiles.shape[1]
    REST: gl.constexpr = rest_tiles.shape[1]
    of_rows: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    of_rest: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, REST, 16])
    row_tiles, steps = gl.cdiv(num_rows, ROWS + MORE), gl.cdiv(K, w_tiles.shape[2])
    slot, phase = 0, 0
    overlap.wait(PDL)
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        total = gl.zeros((COLUMNS, ROWS), gl.float32, of_rows)
        total_rest = gl.zeros((COLUMNS, REST), gl.float32, of_rest)
        for step in range(steps):
            mbarrier.wait(full.index(slot), phase)
            w, a = w_tiles.index(slot), x_tiles.index(slot).permute((1, 0))
            total = warpgroup_mma(w, a, total, is_async=True)
            if MORE:
                b = rest_tiles.index(slot).permute((1, 0))
                total_rest = warpgroup_mma(w, b, total_rest, is_async=True)
            # The products of the step before are complete, so its slot is free.
            total, total_rest = _wait_for_products(total, total_rest, 1, MORE > 0)
            mbarrier.arrive(free.index((slot + SLOTS - 1) % SLOTS), pred=step > 0)
            slot += 1
            if slot == SLOTS:
                slot, phase = 0, phase ^ 1
        total, total_rest = _wait_for_products(total, total_rest, 0, MORE > 0)
        mbarrier.arrive(free.index((slot + SLOTS - 1) % SLOTS))
        if tile + gl.num_programs(0) >= num_tiles:
            overlap.release(PDL)
        row, column = tile % row_tiles * (ROWS + MORE), tile // row_tiles * COLUMNS
        _store(total, residual, out, row, column, num_rows, N, HAS_RESIDUAL)
        if MORE:
            _store(total_rest, residual, out, row + ROWS, column, num_rows, N, HAS_RESIDUAL)


@gluon.jit(do_not_specialize=["num_rows", "num_tiles"])
def _specialized_kernel(
    x,  # [num_rows, K] descriptor, in boxes of the rows of a tile
    rest,  # the same in boxes of MORE, or of one core matrix if there are none
    weight,  # [N, K]
    residual,  # [num_rows, N]
    out,  # [num_rows, N]
    num_rows,
    N,
    K,
    num_tiles,
    MORE: gl.constexpr,
    STAGES: gl.constexpr,
    HAS_RESIDUAL: gl.constexpr,
    PDL: gl.constexpr,
):
    ROWS: gl.constexpr = x.block_shape[0]
    COLUMNS: gl.constexpr = weight.block_shape[0]
    DEPTH: gl.constexpr = weight.block_shape[1]
    w_tiles = gl.allocate_shared_memory(weight.dtype, [STAGES, COLUMNS, DEPTH], weight.layout)
    x_tiles = gl.allocate_shared_memory(weight.dtype, [STAGES, ROWS, DEPTH], x.layout)
    rest_tiles = x_tiles
    if MORE:
        rest_tiles = gl.allocate_shared_memory(weight.dtype, [STAGES, MORE, DEPTH], rest.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(free.index(slot), count=1)
    gl.warp_specialize(
        [
            (_multiply_tiles, (w_tiles, x_tiles, rest_tiles, full, free, residual, out, num_rows, N,
                               K, num_tiles, MORE, HAS_RESIDUAL, PDL)),
            (_load_tiles, (x, rest, weight, w_tiles, x_tiles, rest_tiles, full, free, num_rows, K,
                           num_tiles, MORE, PDL)),
        ],
        [1],
        [_LOADING_REGISTERS],
    )  # fmt: skip


def launch_specialized(
    x: torch.Tensor,  # [n, in]
    weight: torch.Tensor,  # [out, in]
    residual: torch.Tensor,  # [n, out] contiguous
    *,
    tile: SpecializedTile,
    has_residual: bool,
) -> torch.Tensor:  # [n, out]
    """The product by tiles of this size, of operands that fit; public for benchmarks."""
    (num_rows, depth), size = x.shape, weight.shape[0]
    out = torch.empty((num_rows, size), dtype=x.dtype, device=x.device)
    row_tiles = triton.cdiv(num_rows, tile.rows + tile.more)
    num_tiles = triton.cdiv(size, tile.columns) * row_tiles
    kernel: Any = _specialized_kernel[(min(num_tiles, gpu_facts.num_cores(x)),)]
    kernel(
        _descriptor(x, tile.rows, tile.depth),
        _descriptor(x, tile.more or tile.rows, tile.depth),
        _descriptor(weight, tile.columns, tile.depth),
        residual,
        out,
        num_rows,
        size,
        depth,
        num_tiles,
        MORE=tile.more,
        STAGES=tile.stages,
        HAS_RESIDUAL=has_residual,
        PDL=overlap.is_on(x),
        num_warps=4,
        **overlap.options(x),
    )
    return out


def _descriptor(matrix: torch.Tensor, rows: int, depth: int) -> Any:
    dtype = gl.bfloat16 if matrix.dtype == torch.bfloat16 else gl.float16
    layout = gl.NVMMASharedLayout.get_default_for([rows, depth], dtype)
    return TensorDescriptor.from_tensor(matrix, [rows, depth], layout)
