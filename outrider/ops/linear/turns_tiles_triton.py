"""Where the kernel of `turns_linear_triton.py` is used, and the sizes of its tiles.

That kernel is written for one version of Triton, so this module decides without importing it.
"""

from dataclasses import dataclass

import torch

from outrider.ops import gpu_facts
from outrider.ops.linear.kernel_weight import BLOCK, LINES, KernelWeight

OUTPUTS = 128  # lines of a tile: 64 for each group of multiplying warps
_NUM_GROUPS = 2  # of multiplying warps
MOST_ROWS = 128  # of a tile
MOST_SPLIT_TILES = 2  # of rows, whose slices are summed side by side
_NARROW = 4096  # lines of a weight
_SHORT, _MIDDLE, _LONG = 1024, 1792, 4096  # inputs of a slice
_MOST_STAGES = 8
_LINE = 16  # bytes that the addresses of TMA are multiples of
_ENDING_BYTES, _RESIDUAL_BYTES = 6 << 10, 38 << 10  # shared memory of the epilogue


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsTile:
    """Rows of the tile of one block of threads, and how far ahead it loads."""

    rows: int
    stages: int


def fits_turns(x: torch.Tensor, weight: KernelWeight, *, is_gated: bool) -> bool:
    """Whether this GPU, this Triton and these operands are those that the kernel is written for."""
    lines, loaded = weight.shape[0], (x, weight.codes, weight.scales.words)  # by TMA
    return (
        gpu_facts.is_tested_hopper(x)
        and x.dtype == torch.bfloat16
        and has_one_word(weight)
        and lines % 4 == 0
        and lines > LINES  # smaller ones have not run on a GPU
        and (not is_gated or lines // 2 % LINES == 0)
        and x.stride(1) == 1
        and x.stride(0) * x.element_size() % _LINE == 0
        and all(each.data_ptr() % _LINE == 0 for each in loaded)
    )


def num_counters(lines: int) -> int:
    """One for every group of warps of every tile whose slices are summed side by side."""
    return -(-lines // OUTPUTS) * _NUM_GROUPS * MOST_SPLIT_TILES


def has_one_word(weight: KernelWeight) -> bool:
    """Whether a word holds all scales and zero points of a block of an output, or of all blocks."""
    scales = weight.scales
    if weight.kind == "wide" or len(scales.zeros):
        return False
    if weight.kind == "e2m1":
        return scales.form == "e8m0 of 32"
    return scales.group % BLOCK == 0


def turns_pay(num_rows: int, weight: KernelWeight, *, slice_size: int) -> bool:
    """Whether these tiles are faster than all others of the same bits.

    Measured on an H200 with e4m3 and int4 and up to 4,096 rows, at the shapes of Llama-3.1-8B
    (docs/lab/log.md). int8 and MXFP4 were not timed: they follow codes of as many bits.
    """
    is_large = weight.shape[0] >= _NARROW and slice_size >= _SHORT
    return is_large and num_rows >= _least_rows(weight, slice_size)


def _least_rows(weight: KernelWeight, slice_size: int) -> int:
    """Turns start slowly, so a short slice pays from more rows on than a long one."""
    if slice_size >= _MIDDLE:
        return 17 if slice_size >= _LONG else 33
    is_light = weight.shape[0] == _NARROW and weight.kind not in ("e4m3", "int8")
    return MOST_ROWS + 1 if is_light else 65


def choose_turns_tile(num_rows: int, weight: KernelWeight, *, has_residual: bool) -> TurnsTile:
    """As few rows as cover all, and as many stages as there is room for."""
    rows = next((rows for rows in (16, 32, 64) if rows >= num_rows), MOST_ROWS)
    codes = weight.codes[0, 0].nbytes * (OUTPUTS // LINES)
    stage = rows * BLOCK * 2 + codes + OUTPUTS * 4
    ending = _RESIDUAL_BYTES if has_residual else _ENDING_BYTES
    stages = min((gpu_facts.HOPPER_SHARED - ending) // stage, _MOST_STAGES)
    return TurnsTile(rows=rows, stages=stages)
