"""Where the kernel of `specialized_linear_triton.py` is used, and the sizes of its tiles.

That kernel is written for one version of Triton, so this module decides without importing it.
"""

from dataclasses import dataclass

import torch

from outrider.ops import gpu_facts
from outrider.ops.linear.bulk_linear_triton import fits_bulk

MOST_ROWS = 512
MOST_STAGES = 12
MOST_BYTES = 204 << 10  # of shared memory for all stages; the rest is for the epilogue
LEAST_DEPTH = 2048  # inputs of a row: at least as many steps as any tile has stages
_NARROW, _WIDE = 6144, 16384  # outputs
_HEIGHTS = ((64, 0), (64, 16), (64, 32), (128, 0), (128, 32), (128, 64))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecializedTile:
    """Sizes of the tile of one block of threads, and how far ahead it loads."""

    rows: int
    more: int = 0  # rows of a second product
    columns: int  # of the weight
    depth: int = 64
    stages: int


def fits_specialized(x: torch.Tensor, weight: torch.Tensor) -> bool:  # [n, in], [out, in]
    """Whether this GPU, this Triton and these operands are those that the kernel is written for."""
    return weight.shape[1] >= LEAST_DEPTH and fits_bulk(x, weight) and gpu_facts.is_tested_hopper(x)


def specialized_pays(num_rows: int, size: int, depth: int) -> bool:
    """Whether these tiles are faster than all others of the same bits."""
    if num_rows <= 64:
        return 16 < num_rows <= 32 and depth >= 8192 and size < _WIDE
    return 128 < num_rows <= 192 if size >= _WIDE else num_rows <= MOST_ROWS


def choose_specialized_tile(num_rows: int, size: int) -> SpecializedTile:
    """Measured on an H200 at the shapes of Llama-3.1-8B (docs/lab/log.md).

    A core takes in about 64 bytes a cycle, from memory or from the L2 cache. So a few large tiles
    are as slow as many small ones. Best are as many tiles as cores, each nearly a square.
    """
    if num_rows <= 32:
        return _tile_of(32, 0, columns=64, depth=128)
    if num_rows > 384:
        return _tile_of(128, 0, columns=128)
    parts = 1 if num_rows <= (96 if size < _NARROW else 192) else 2
    rows, more = next(pair for pair in _HEIGHTS if sum(pair) * parts >= num_rows)
    is_broad = size >= _WIDE or (size >= _NARROW and parts == 2)
    return _tile_of(rows, more, columns=128 if is_broad else 64)


def _tile_of(rows: int, more: int, *, columns: int, depth: int = 64) -> SpecializedTile:
    """The tile with as many stages as there is room for."""
    stages = min(MOST_BYTES // ((rows + more + columns) * depth * 2), MOST_STAGES)
    return SpecializedTile(rows=rows, more=more, columns=columns, depth=depth, stages=stages)
