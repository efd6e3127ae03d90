"""A quantised weight in the layout of our kernels.

A tile needs few scales of each output. Kernels copy data ahead in pieces of 4 bytes at least, so
scales and zero points lie in words of 32 bits, and neighbouring outputs beside each other.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from outrider.ops.linear.quantised_weight import (
    INT4_MIDDLE,
    CodeKind,
    QuantisedWeight,
    widen_scales,
)

# What a word holds: a float32 scale; a scale of 16 bits and, above it, a zero point; or the scales
# of four groups, as powers of two or as e4m3.
WordForm = Literal["float32", "float16", "bfloat16", "e8m0", "e4m3"]

# Inputs of a block of 4-bit codes: a tile is as deep, so the low bits of its bytes are the first
# half of its inputs, and the high bits are the second.
NIBBLE_BLOCK = 128
_PER_WORD = 4  # scales of one byte


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleWords:
    """The scales of a weight."""

    form: WordForm
    words: torch.Tensor  # [groups, out] int32; [groups / 4, out] for scales of one byte
    zeros: torch.Tensor  # [groups, out] int32; [0, out] if words hold them or there are none
    factors: torch.Tensor  # [out] float32, also multiplied by; [0] if there are none
    group: int  # inputs that share a scale; 0: all


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelWeight:
    """The numbers of a `QuantisedWeight`, [out, in]."""

    kind: CodeKind
    codes: torch.Tensor  # [out, in], or [out, bytes] in blocks of NIBBLE_BLOCK inputs
    scales: ScaleWords
    inputs: int
    order: torch.Tensor  # [in] int64, the input that each code belongs to; [0] if it is its own

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.inputs

    @property
    def has_nibbles(self) -> bool:
        return self.kind in ("int4", "e2m1")

    @property
    def nbytes(self) -> int:
        """What a product reads of it."""
        scales = self.scales
        parts = (self.codes, scales.words, scales.zeros, scales.factors)
        return sum(part.nbytes for part in parts)


DeviceWeight = torch.Tensor | KernelWeight  # [out, in], as kernels read it


def kernel_weight(weight: QuantisedWeight) -> KernelWeight:
    """The same numbers in the layout of our kernels."""
    codes = weight.in_blocks(NIBBLE_BLOCK).codes
    return KernelWeight(
        kind=weight.kind,
        codes=codes.contiguous(),
        scales=scale_words(weight),
        inputs=weight.inputs,
        order=weight.order,
    )


def scale_words(weight: QuantisedWeight) -> ScaleWords:
    """The scales of a weight in words, without loss."""
    stored = weight.scales
    form, group = _form(weight), 0 if len(stored.scales) == 1 else stored.group
    zeros, factors = stored.zeros.int(), stored.factors
    if form in ("e8m0", "e4m3"):
        words = _four_in_a_word(stored.scales)
    elif form == "float32":
        steps = widen_scales(stored.scales)
        steps = steps * factors if len(factors) else steps
        words, factors = steps.contiguous().view(torch.int32), factors[:0]
    else:
        middle = INT4_MIDDLE if weight.kind == "int4" else 0
        zeros = zeros if len(zeros) else torch.full_like(stored.scales, middle, dtype=torch.int32)
        words = (stored.scales.contiguous().view(torch.int16).int() & 0xFFFF) | (zeros << 16)
        zeros = zeros[:0]
    return ScaleWords(form=form, words=words, zeros=zeros, factors=factors, group=group)


def _form(weight: QuantisedWeight) -> WordForm:
    """Scales of one byte share words if a tile, or half a tile of 4-bit codes, has four at most."""
    scales, group = weight.scales, weight.scales.group
    width = NIBBLE_BLOCK // 2 if weight.has_nibbles else NIBBLE_BLOCK
    is_power = group & (group - 1) == 0
    is_shared = len(scales.scales) > 1 and is_power and group * _PER_WORD >= width
    if scales.scales.dtype == torch.uint8:
        return "e8m0" if is_shared else "float32"
    if scales.scales.dtype == torch.float8_e4m3fn:
        return "e4m3" if is_shared else "float32"
    if len(scales.factors):
        return "float32"
    halves: dict[torch.dtype, WordForm] = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
    return halves.get(scales.scales.dtype, "float32")


def _four_in_a_word(scales: torch.Tensor) -> torch.Tensor:  # [groups, out] -> [groups / 4, out]
    """Neighbouring groups of an output, the first in the low bits."""
    groups, rows = scales.shape
    padded = F.pad(scales.view(torch.uint8), (0, 0, 0, -groups % _PER_WORD))
    by_word = padded.reshape(-1, _PER_WORD, rows).transpose(1, 2).contiguous()
    return by_word.view(torch.int32).squeeze(2)
