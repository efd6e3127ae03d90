"""x W^T for quantised weights by specialised warps: one loads, two groups of four multiply. Hopper.

Each group has 64 outputs of a tile. While tensor cores multiply a block of 128 inputs for one of
them, it reads the codes of the next block, and the other group widens its own. Weights do not
depend on the kernel before, so the first of them are requested before that kernel is complete. With
few tiles of rows every slice has a block of threads of its own. With more of them, one block sums
slice after slice. Sums have the bits of `quantised_linear_triton.py`.
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
from outrider.ops.linear.kernel_weight import BLOCK, LINES, KernelWeight
from outrider.ops.linear.quantised_product_triton import (
    groups_in_a_word,
    is_summed,
    weight_arguments,
)
from outrider.ops.linear.swiglu_triton import swiglu_of
from outrider.ops.linear.turns_operand_triton import (
    GROUPS,
    in_line_order,
    is_turned,
    line_words,
    operand_of,
    part_of_lines,
    read_block,
)
from outrider.ops.linear.turns_tiles_triton import MOST_SPLIT_TILES, OUTPUTS, TurnsTile

_BLOCK = gl.constexpr(BLOCK)
_LINES = gl.constexpr(LINES)
_PARTS = gl.constexpr(4)  # of 32 lines in a tile: two for each group of warps
_LOADING_REGISTERS = gl.constexpr(24)  # per thread of the loading warp
_MULTIPLYING_REGISTERS = gl.constexpr(232)  # of one group; the other has the rest of 3 * 168


@gluon.jit
def _load_weights(
    codes, words, w_tiles, word_tiles, full, slot, first, block, N, K,
    IS_GATED: gl.constexpr, GROUP: gl.constexpr, FORM: gl.constexpr, BYTES: gl.constexpr,
):  # fmt: skip
    """Request a block of the codes and words of a tile; `BYTES` come with the rows."""
    HAS_WORDS: gl.constexpr = GROUP > 0
    barrier = full.index(slot)
    mbarrier.expect(barrier, BYTES)
    for part in gl.static_range(_PARTS):
        place = part_of_lines(first, part, N, IS_GATED)
        line = (place * gl.cdiv(K, _BLOCK) + block) * _LINES
        to = w_tiles.index(slot * _PARTS + part)
        tma.async_copy_global_to_shared(codes, [line, 0], barrier, to)
        if HAS_WORDS:
            row = _word_row(block, GROUP, FORM)
            to = word_tiles.index(slot * _PARTS + part)
            tma.async_copy_global_to_shared(words, [row, place * _LINES], barrier, to)


@gluon.jit
def _word_row(block, GROUP: gl.constexpr, FORM: gl.constexpr):
    if is_summed(GROUP):
        block = block * _BLOCK // GROUP // groups_in_a_word(FORM)
    return block


@gluon.jit
def _unit_of(unit, num_tiles, row_tiles, unit_size, K, ROWS: gl.constexpr, OUTPUTS: gl.constexpr):
    """Row, first output, first block and number of blocks of a unit: a tile of one slice, or of
    all slices.
    """
    tile, piece = unit % num_tiles, unit // num_tiles
    begin = piece * unit_size
    steps = gl.cdiv(gl.minimum(unit_size, K - begin), _BLOCK)
    return tile % row_tiles * ROWS, tile // row_tiles * OUTPUTS, begin // _BLOCK, steps


@gluon.jit
def _load_units(
    x, codes, words, x_tiles, w_tiles, word_tiles, full, free,
    N, K, num_tiles, row_tiles, num_units, unit_size,
    IS_GATED: gl.constexpr, GROUP: gl.constexpr, FORM: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """The loading warp: fill every slot once, then each slot again when it is free."""
    SLOTS: gl.constexpr = x_tiles.shape[0]
    ROWS: gl.constexpr = x_tiles.shape[1]
    OUTPUTS: gl.constexpr = _PARTS * _LINES // (2 if IS_GATED else 1)
    CODES: gl.constexpr = _LINES * codes.block_shape[1] * codes.dtype.primitive_bitwidth // 8
    SCALES: gl.constexpr = _LINES * 4 if GROUP > 0 else 0
    BYTES: gl.constexpr = ROWS * _BLOCK * 2 + _PARTS * (CODES + SCALES)
    unit = gl.program_id(0)
    row, first, block, steps = _unit_of(unit, num_tiles, row_tiles, unit_size, K, ROWS, OUTPUTS)
    ahead = gl.minimum(steps, SLOTS)
    for slot in range(ahead):
        _load_weights(codes, words, w_tiles, word_tiles, full, slot, first, block + slot, N, K,
                      IS_GATED, GROUP, FORM, BYTES)  # fmt: skip
    overlap.wait(PDL)
    for slot in range(ahead):
        place = [row, (block + slot) * _BLOCK]
        tma.async_copy_global_to_shared(x, place, full.index(slot), x_tiles.index(slot))
    slot, phase, done = ahead, 1, ahead
    if slot == SLOTS:
        slot, phase = 0, 0
    while unit < num_units:
        row, first, block, steps = _unit_of(unit, num_tiles, row_tiles, unit_size, K, ROWS, OUTPUTS)
        for step in range(done, steps):
            mbarrier.wait(free.index(slot), phase)
            _load_weights(codes, words, w_tiles, word_tiles, full, slot, first, block + step, N, K,
                          IS_GATED, GROUP, FORM, BYTES)  # fmt: skip
            place = [row, (block + step) * _BLOCK]
            tma.async_copy_global_to_shared(x, place, full.index(slot), x_tiles.index(slot))
            slot += 1
            if slot == SLOTS:
                slot, phase = 0, phase ^ 1
        done = 0
        unit += gl.num_programs(0)


@gluon.jit
def _sum_blocks(
    x_tiles, w_tiles, word_tiles, full, free, word, factor, slot, phase, block, steps, group,
    KIND: gl.constexpr, GROUP: gl.constexpr, FORM: gl.constexpr, IS_GATED: gl.constexpr,
):  # fmt: skip
    """The sums of blocks for a group of warps; the slot and the phase of the block after them."""
    SLOTS: gl.constexpr = x_tiles.shape[0]
    ROWS: gl.constexpr = x_tiles.shape[1]
    TYPE: gl.constexpr = x_tiles.dtype
    of_products: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    products = gl.zeros((64, ROWS), gl.float32, of_products)
    total = gl.zeros((64, ROWS), gl.float32, of_products)
    mbarrier.wait(full.index(slot), phase)
    stored, word = read_block(w_tiles, word_tiles, slot, group, word, KIND, GROUP, IS_GATED)
    for step in range(steps):
        w, scale = operand_of(
            stored, word, factor, block + step, of_products, TYPE, KIND, GROUP, FORM, IS_GATED
        )
        a = x_tiles.index(slot).permute((1, 0))
        pending = warpgroup_mma(w, a, products, use_acc=False, is_async=True)
        used = slot
        slot += 1
        if slot == SLOTS:
            slot, phase = 0, phase ^ 1
        if step + 1 < steps:
            mbarrier.wait(full.index(slot), phase)
            stored, word = read_block(w_tiles, word_tiles, slot, group, word, KIND, GROUP, IS_GATED)
        products = warpgroup_mma_wait(0, deps=[pending])
        mbarrier.arrive(free.index(used))
        total += products * scale[:, None]
    return total, slot, phase


@gluon.jit
def _sum_slices(
    x_tiles, w_tiles, word_tiles, full, free, word, factor, partial, slot, phase, block, steps,
    slice_steps, group,
    KIND: gl.constexpr, GROUP: gl.constexpr, FORM: gl.constexpr, IS_GATED: gl.constexpr,
    IS_CHAINED: gl.constexpr,
):  # fmt: skip
    """The sums of a unit. Those of its slices are added in order, and wait in memory for the next:
    there are no registers left for them.
    """
    if IS_CHAINED:
        ROWS: gl.constexpr = x_tiles.shape[1]
        of_products: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
        total = gl.zeros((64, ROWS), gl.float32, of_products)
        at = _cells(partial, gl.program_id(0) * GROUPS + group, total)
        for begin in range(0, steps, slice_steps):
            gl.store(at, total)
            total, slot, phase = _sum_blocks(
                x_tiles, w_tiles, word_tiles, full, free, word, factor, slot, phase,
                block + begin, gl.minimum(slice_steps, steps - begin), group,
                KIND, GROUP, FORM, IS_GATED,
            )  # fmt: skip
            total = gl.load(at) + total
    else:
        total, slot, phase = _sum_blocks(
            x_tiles, w_tiles, word_tiles, full, free, word, factor, slot, phase, block, steps,
            group, KIND, GROUP, FORM, IS_GATED,
        )  # fmt: skip
    return total, slot, phase


@gluon.jit
def _cells(partial, tile, total):
    """Where the sums of a tile of a group of warps are in memory, in the layout of sums."""
    of_products: gl.constexpr = total.type.layout
    line = gl.arange(0, total.shape[0], layout=gl.SliceLayout(1, of_products))
    row = gl.arange(0, total.shape[1], layout=gl.SliceLayout(0, of_products))
    cell = line[:, None] * total.shape[1] + row[None, :]
    return partial + tile.to(gl.int64) * (total.shape[0] * total.shape[1]) + cell


@gluon.jit
def _multiply_units(
    x_tiles, w_tiles, word_tiles, full, free, words, factors, residual, out, partial, arrivals,
    num_rows, N, K, num_tiles, row_tiles, num_units, num_slices, unit_size, slice_size, group,
    KIND: gl.constexpr, GROUP: gl.constexpr, FORM: gl.constexpr, HAS_FACTORS: gl.constexpr,
    IS_GATED: gl.constexpr, HAS_RESIDUAL: gl.constexpr, IS_SPLIT: gl.constexpr,
    IS_CHAINED: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """A group of multiplying warps: one sum for every output of its half of a tile."""
    ROWS: gl.constexpr = x_tiles.shape[1]
    OUTPUTS: gl.constexpr = _PARTS * _LINES // (2 if IS_GATED else 1)
    slot, phase = 0, 0
    overlap.wait(PDL)
    for unit in range(gl.program_id(0), num_units, gl.num_programs(0)):
        row, first, block, steps = _unit_of(unit, num_tiles, row_tiles, unit_size, K, ROWS, OUTPUTS)
        word, factor = line_words(
            words, factors, first, group, N, IS_GATED, KIND, GROUP, FORM, HAS_FACTORS
        )
        total, slot, phase = _sum_slices(
            x_tiles, w_tiles, word_tiles, full, free, word, factor, partial, slot, phase,
            block, steps, slice_size // _BLOCK, group, KIND, GROUP, FORM, IS_GATED, IS_CHAINED,
        )  # fmt: skip
        if unit + gl.num_programs(0) >= num_units:
            overlap.release(PDL)
        _finish(total, residual, out, partial, arrivals, unit, num_tiles, num_slices, group,
                row, first, num_rows, N, KIND, IS_GATED, HAS_RESIDUAL, IS_SPLIT)  # fmt: skip


@gluon.jit
def _finish(
    total, residual, out, partial, arrivals, unit, num_tiles, num_slices, group,
    row, first, num_rows, N,
    KIND: gl.constexpr, IS_GATED: gl.constexpr, HAS_RESIDUAL: gl.constexpr, IS_SPLIT: gl.constexpr,
):  # fmt: skip
    """Store the sums of a unit, or keep them until the last slice of its tile adds all."""
    if not IS_SPLIT:
        _store(total, residual, out, row, first, group, num_rows, N, KIND, IS_GATED, HAS_RESIDUAL)
    else:
        CELLS: gl.constexpr = total.shape[0] * total.shape[1]
        tile, piece = unit % num_tiles * GROUPS + group, unit // num_tiles
        at = _cells(partial, tile * num_slices, total)
        gl.store(at + piece * CELLS, total)
        gl.thread_barrier()  # all threads have stored before one of them says so
        if gl.atomic_add(arrivals + tile, 1, sem="acq_rel") == num_slices - 1:
            gl.store(arrivals + tile, 0)
            total = gl.load(at, cache_modifier=".cg")
            for each in range(1, num_slices):
                total += gl.load(at + each * CELLS, cache_modifier=".cg")
            _store(
                total, residual, out, row, first, group, num_rows, N, KIND, IS_GATED, HAS_RESIDUAL
            )


@gluon.jit
def _store(
    total, residual, out, row, first, group, num_rows, N,
    KIND: gl.constexpr, IS_GATED: gl.constexpr, HAS_RESIDUAL: gl.constexpr,
):  # fmt: skip
    """Apply the gate or add the residual, round once and store sums [64, rows] as rows."""
    TYPE: gl.constexpr = out.dtype.element_ty
    ROWS: gl.constexpr = total.shape[1]
    OUTPUTS: gl.constexpr = 32 if IS_GATED else 64
    total = in_line_order(total, IS_GATED, is_turned(KIND))
    if IS_GATED:
        gate, up = gl.split(total.reshape((2, 32, ROWS)).permute((1, 2, 0)))
        total = swiglu_of(gate, up, TYPE)
    if not HAS_RESIDUAL:
        total = total.to(TYPE)  # half as much to move between threads
    THREADS: gl.constexpr = OUTPUTS // 8  # of a row; each stores 16 bytes
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 // THREADS, THREADS], [4, 1], [1, 0])
    total = gl.convert_layout(total.permute((1, 0)), layout)
    row += gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    column = first + group * OUTPUTS + gl.arange(0, OUTPUTS, layout=gl.SliceLayout(0, layout))
    at = row[:, None].to(gl.int64) * N + column[None, :]
    inside = (row < num_rows)[:, None] & (column < N)[None, :]
    if HAS_RESIDUAL:
        total += gl.load(residual + at, mask=inside, other=0.0).to(gl.float32)
    gl.store(out + at, total.to(TYPE), mask=inside)


@gluon.jit(do_not_specialize=["num_rows", "num_tiles", "row_tiles", "num_units", "num_slices"])
def _turns_kernel(
    x,  # [num_rows, K] descriptor, in boxes of the rows of a tile and 128 inputs
    codes,  # [lines * blocks, WIDTH] descriptor, in boxes of a block of 32 lines
    words_of_blocks,  # [groups, lines] descriptor, in boxes of 32 words
    words, factors,
    residual,  # [num_rows, N]
    out,  # [num_rows, N]
    partial,  # [tiles, groups, slices, 64, ROWS] float32; chained: [programs, groups, 64, ROWS]
    arrivals,  # [tiles, groups] int32 zeros
    num_rows, N, K, num_tiles, row_tiles, num_units, num_slices, unit_size, slice_size,
    KIND: gl.constexpr, GROUP: gl.constexpr, FORM: gl.constexpr, HAS_FACTORS: gl.constexpr,
    IS_GATED: gl.constexpr, HAS_RESIDUAL: gl.constexpr, IS_SPLIT: gl.constexpr,
    IS_CHAINED: gl.constexpr, STAGES: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    ROWS: gl.constexpr = x.block_shape[0]
    WIDTH: gl.constexpr = codes.block_shape[1]
    x_tiles = gl.allocate_shared_memory(x.dtype, [STAGES, ROWS, _BLOCK], x.layout)
    parts = gl.allocate_shared_memory(codes.dtype, [STAGES * _PARTS, _LINES, WIDTH], codes.layout)
    word_parts = gl.allocate_shared_memory(
        gl.int32, [STAGES * _PARTS, 1, _LINES], words_of_blocks.layout
    )
    w_tiles = parts._reinterpret(codes.dtype, [STAGES * GROUPS, 2 * _LINES, WIDTH], codes.layout)
    of_words: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    word_tiles = word_parts._reinterpret(gl.int32, [STAGES * GROUPS, 2 * _LINES], of_words)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)  # the loading warp, with all bytes
        mbarrier.init(free.index(slot), count=GROUPS)
    gl.warp_specialize(
        [
            (_multiply_units, (
                x_tiles, w_tiles, word_tiles, full, free, words, factors, residual, out, partial,
                arrivals, num_rows, N, K, num_tiles, row_tiles, num_units, num_slices, unit_size,
                slice_size, 0, KIND, GROUP, FORM, HAS_FACTORS, IS_GATED, HAS_RESIDUAL, IS_SPLIT,
                IS_CHAINED, PDL)),
            (_multiply_units, (
                x_tiles, w_tiles, word_tiles, full, free, words, factors, residual, out, partial,
                arrivals, num_rows, N, K, num_tiles, row_tiles, num_units, num_slices, unit_size,
                slice_size, 1, KIND, GROUP, FORM, HAS_FACTORS, IS_GATED, HAS_RESIDUAL, IS_SPLIT,
                IS_CHAINED, PDL)),
            (_load_units, (
                x, codes, words_of_blocks, x_tiles, parts, word_parts, full, free, N, K, num_tiles,
                row_tiles, num_units, unit_size, IS_GATED, GROUP, FORM, PDL)),
        ],
        [4, 1],
        [_MULTIPLYING_REGISTERS, _LOADING_REGISTERS],
    )  # fmt: skip


def launch_turns(
    x: torch.Tensor,  # [n, in] in the order of codes
    weight: KernelWeight,  # [out, in], or [2 * out, in] when gated
    residual: torch.Tensor,  # [n, out] contiguous; any tensor if there is none
    arrivals: torch.Tensor,  # zeros
    *,
    tile: TurnsTile,
    slices: int,
    slice_size: int,
    has_residual: bool,
    is_gated: bool,
) -> torch.Tensor:  # [n, out]
    """The product by tiles of this size, of operands that fit."""
    (num_rows, inputs), lines = x.shape, weight.shape[0]
    size, outputs = (lines // 2, OUTPUTS // 2) if is_gated else (lines, OUTPUTS)
    row_tiles = triton.cdiv(num_rows, tile.rows)
    num_tiles = triton.cdiv(size, outputs) * row_tiles
    is_split = slices > 1 and row_tiles <= MOST_SPLIT_TILES
    is_chained = slices > 1 and not is_split
    num_units = num_tiles * slices if is_split else num_tiles
    num_programs = min(num_units, gpu_facts.num_cores(x))
    assert tile.stages > 1, "a block is free when the next one is there"
    assert not is_split or len(arrivals) >= num_tiles * GROUPS.value, (
        "a counter for each group of each tile"
    )
    out = torch.empty((num_rows, size), dtype=x.dtype, device=x.device)
    num_sums = num_units if is_split else num_programs if is_chained else 0
    arguments = weight_arguments(weight)
    kernel: Any = _turns_kernel[(num_programs,)]
    kernel(
        _descriptor(x, tile.rows, BLOCK, gl.bfloat16),
        _code_descriptor(weight),
        _descriptor(weight.scales.words, 1, LINES, gl.int32),
        arguments["words"],
        arguments["factors"],
        residual,
        out,
        torch.empty(num_sums * OUTPUTS * tile.rows, dtype=torch.float32, device=x.device),
        arrivals,
        num_rows, size, inputs, num_tiles, row_tiles, num_units, slices,
        slice_size if is_split else inputs, slice_size,
        KIND=weight.kind, GROUP=weight.scales.group, FORM=weight.scales.form,
        HAS_FACTORS=arguments["HAS_FACTORS"],
        IS_GATED=is_gated, HAS_RESIDUAL=has_residual,
        IS_SPLIT=is_split, IS_CHAINED=is_chained,
        STAGES=tile.stages, PDL=overlap.is_on(x), num_warps=4,
        **overlap.options(x),
    )  # fmt: skip
    return out


def _code_descriptor(weight: KernelWeight) -> Any:
    words = weight.codes.view(torch.int32)
    return _descriptor(words.view(-1, words.shape[-1]), LINES, words.shape[-1], gl.int32)


def _descriptor(matrix: torch.Tensor, rows: int, columns: int, dtype: Any) -> Any:
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], dtype)
    return TensorDescriptor.from_tensor(matrix, [rows, columns], layout)
