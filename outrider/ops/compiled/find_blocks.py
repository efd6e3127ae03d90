"""Finds the GGUF blocks that a weight was widened from, by its numbers.

The folders of converted GGUF files hold float32 numbers, which any library reads. Their blocks come
back without loss, or not at all.
"""

from dataclasses import dataclass

import torch

from outrider.ops.compiled.block_kind import BLOCK, KINDS, KindName
from outrider.ops.compiled.why_not_compiled import why_not_compiled


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundBlocks:
    """A weight as rows of blocks, without loss."""

    name: KindName
    rows: torch.Tensor  # [out, row_bytes] uint8


def why_not_searched() -> str:
    """Why `find_blocks` cannot be called on this machine; empty if it can."""
    return why_not_compiled("outrider.ops.compiled.restore_blocks")


def find_blocks(weight: torch.Tensor) -> FoundBlocks | None:  # [out, in]
    """The blocks of a weight that was quantised; None if it has other numbers."""
    from outrider.ops.compiled.restore_blocks import restore_blocks  # imports numba

    if weight.shape[1] % BLOCK or weight.dtype != torch.float32 or not weight.is_contiguous():
        return None
    outputs, inputs = weight.shape
    for name, kind in KINDS.items():
        size = inputs // BLOCK * kind.block_bytes
        rows = torch.empty(outputs, size, dtype=torch.uint8)
        if restore_blocks(weight.data_ptr(), outputs, inputs, kind.index, rows.data_ptr(), size):
            return FoundBlocks(name=name, rows=rows)
    return None


def has_blocks(weight: torch.Tensor) -> bool:  # [out, in]
    """Whether a weight was widened from blocks; False where this cannot be found out."""
    return not why_not_searched() and find_blocks(weight) is not None
