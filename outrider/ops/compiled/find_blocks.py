"""Finds the GGUF blocks that a weight was widened from, by its numbers.

The folders of converted GGUF files hold float32 numbers, which any library reads. The blocks come
back without loss: the scale and the minimum of a block follow from its extreme numbers, because a
quantiser maps these to the first and the last code. The result counts only if widening it gives
every number of the weight again.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from outrider.ops.compiled.block_kind import BLOCK, KINDS, KindName
from outrider.ops.compiled.pack_blocks import quantise_rows, widen_rows

_SAMPLE = 8  # rows that are tried first: most weights were never quantised


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundBlocks:
    """A weight as rows of blocks, without loss."""

    name: KindName
    rows: torch.Tensor  # [out, row_bytes] uint8


def find_blocks(weight: torch.Tensor) -> FoundBlocks | None:  # [out, in]
    """The blocks of a weight that was quantised; None if it has other numbers."""
    if weight.shape[1] % BLOCK or weight.dtype != torch.float32:
        return None
    for name, restore in _RESTORE.items():
        sample = weight[:_SAMPLE]
        if torch.equal(widen_rows(restore(sample), name), sample):
            rows = restore(weight)
            if torch.equal(widen_rows(rows, name), weight):
                return FoundBlocks(name=name, rows=rows)
    return None


def _restore_q4_1(weight: torch.Tensor) -> torch.Tensor:  # [out, in] -> [out, row_bytes]
    """The smallest number of a block has code 0, the largest has code 15."""
    blocks = weight.view(len(weight), -1, BLOCK)
    minimum, maximum = blocks.amin(2, keepdim=True), blocks.amax(2, keepdim=True)
    scale = ((maximum - minimum) / 15).half()
    return _nibble_rows(blocks - minimum, scale, torch.cat([scale, minimum.half()], dim=2))


def _restore_q4_0(weight: torch.Tensor) -> torch.Tensor:  # [out, in] -> [out, row_bytes]
    """The number of a block with the largest absolute value has code 0, which is -8 scales."""
    blocks = weight.view(len(weight), -1, BLOCK)
    place = blocks.abs().argmax(2, keepdim=True)
    scale = (blocks.gather(2, place) / -KINDS["Q4_0"].offset).half()
    return _nibble_rows(blocks + KINDS["Q4_0"].offset * scale.float(), scale, scale)


def _nibble_rows(
    from_first: torch.Tensor,  # [out, blocks, 32] numbers less that of code 0
    scale: torch.Tensor,  # [out, blocks, 1] float16
    halves: torch.Tensor,  # [out, blocks, 1 or 2] float16 as stored before the codes
) -> torch.Tensor:  # [out, row_bytes]
    steps = torch.where(scale == 0, 0.0, from_first / scale.float())
    codes = steps.round_().clamp_(0, 15).to(torch.uint8)
    packed = codes[:, :, : BLOCK // 2] | (codes[:, :, BLOCK // 2 :] << 4)
    return torch.cat([halves.view(torch.uint8), packed], dim=2).flatten(1)


_RESTORE: dict[KindName, Callable[[torch.Tensor], torch.Tensor]] = {
    "Q4_1": _restore_q4_1,
    "Q4_0": _restore_q4_0,
    "Q8_0": quantise_rows,
}
