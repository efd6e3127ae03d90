"""Finds the GGUF blocks that a weight was widened from, by its numbers.

The folders of converted GGUF files hold float32 numbers, which any library reads, and beside them
the blocks. Folders that were converted by older versions lack these. Blocks come back without loss,
or not at all.
"""

import torch

from outrider.ops.compiled.block_kind import BLOCK, KINDS, KindName
from outrider.ops.compiled.gguf_rows import GgufRows
from outrider.ops.compiled.why_not_compiled import why_not_compiled

_FOUND: tuple[KindName, ...] = ("Q4_0", "Q4_1", "Q8_0")  # whose extreme numbers tell their scales


def why_not_searched() -> str:
    """Why `find_blocks` cannot be called on this machine; empty if it can."""
    return why_not_compiled("outrider.ops.compiled.restore_blocks")


def find_blocks(weight: torch.Tensor) -> GgufRows | None:  # [out, in]
    """The blocks of a weight that was quantised; None if it has other numbers."""
    from outrider.ops.compiled.restore_blocks import restore_blocks  # imports numba

    if weight.shape[1] % BLOCK or weight.dtype != torch.float32 or not weight.is_contiguous():
        return None
    outputs, inputs = weight.shape
    for name in _FOUND:
        kind = KINDS[name]
        size = inputs // BLOCK * kind.stored_bytes
        rows = torch.empty(outputs, size, dtype=torch.uint8)
        if restore_blocks(weight.data_ptr(), outputs, inputs, kind.index, rows.data_ptr(), size):
            return GgufRows(name, rows)
    return None


def has_blocks(weight: torch.Tensor) -> bool:  # [out, in]
    """Whether a weight was widened from blocks; False where this cannot be found out."""
    return not why_not_searched() and find_blocks(weight) is not None
