"""A quantised weight in the layout of our kernels.

Tensor cores take the inputs of an output from four threads, in pairs. Codes lie in that order, so a
thread reads 16 bytes at once and needs no code of another thread. The blocks of neighbouring
outputs lie beside each other, because memory is fastest in long pieces.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from outrider.ops.linear.quantised_weight import (
    INT4_MIDDLE,
    CodeKind,
    QuantisedWeight,
    unpack_nibbles,
    widen_scales,
)

# What a word holds: a float32 scale; a scale of 16 bits and, above it, a zero point; or the scales
# of four groups, as powers of two or as e4m3. "e8m0 of 32": groups of MXFP4 with usual scales.
WordForm = Literal["float32", "float16", "bfloat16", "e8m0", "e8m0 of 32", "e4m3"]
KernelKind = CodeKind | Literal["wide"]  # wide: codes in the type of activations

BLOCK = 128  # inputs of a block: kernels sum as many from zero
LINES = 32  # outputs whose blocks lie beside each other
_PER_WORD = 4  # scales of one byte
_MX_GROUP = 32  # inputs that share a scale in MXFP4
_MOST_USUAL = 128  # e8m0 of 2
_ROWS_AT_ONCE = 4096  # a multiple of LINES: bounds the memory while a weight is arranged


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleWords:
    """The scales of a weight."""

    form: WordForm
    words: torch.Tensor  # [groups, out] int32; [groups / 4, out] for scales of one byte
    # [groups, out] int32 or float32; [0, out] if words hold them or there are none
    zeros: torch.Tensor
    factors: torch.Tensor  # [out] float32, also multiplied by; [0] if there are none
    group: int  # inputs that share a scale; 0: all


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelWeight:
    """The numbers of a `QuantisedWeight`, [out, in]."""

    kind: KernelKind
    # [out / LINES, in / BLOCK, LINES, BLOCK], padded with zeros; words of four int8 or eight 4-bit
    # codes are int32
    codes: torch.Tensor
    scales: ScaleWords
    shape: tuple[int, int]  # out, in
    order: torch.Tensor  # [in] int64, the input that each code belongs to; [0] if it is its own

    @property
    def nbytes(self) -> int:
        """What a product reads of it."""
        scales = self.scales
        parts = (self.codes, scales.words, scales.zeros, scales.factors)
        return sum(part.nbytes for part in parts)


def kernel_weight(weight: QuantisedWeight) -> KernelWeight:
    """The same numbers in the layout of our kernels."""
    return _arranged(weight, _room_for(weight))


def kernel_weight_in_place(weight: QuantisedWeight) -> KernelWeight:
    """The same, in the memory of the weight's codes if they fill their blocks. The weight is lost.

    So all experts of a layer need no memory twice.
    """
    (rows, inputs), codes = weight.shape, weight.codes
    if rows % LINES or inputs % BLOCK or not codes.is_contiguous():
        return kernel_weight(weight)
    return _arranged(
        weight, codes.view(torch.uint8).view(rows // LINES, inputs // BLOCK, LINES, -1)
    )


def _room_for(weight: QuantisedWeight) -> torch.Tensor:
    (rows, inputs), width = weight.shape, BLOCK // 2 if weight.has_nibbles else BLOCK
    shape = -(-rows // LINES), -(-inputs // BLOCK), LINES, width
    return torch.empty(shape, dtype=torch.uint8, device=weight.codes.device)


def _arranged(
    weight: QuantisedWeight,
    room: torch.Tensor,  # [out / LINES, in / BLOCK, LINES, bytes] uint8
) -> KernelWeight:
    arrange = _arrange_nibbles if weight.has_nibbles else _arrange_bytes
    for first in range(0, weight.shape[0], _ROWS_AT_ONCE):
        lines = arrange(_block_bytes(weight, first))  # [lines, blocks, bytes]
        by_block = lines.reshape(-1, LINES, *lines.shape[1:]).transpose(1, 2)
        room[first // LINES : first // LINES + len(by_block)].copy_(by_block)
    return KernelWeight(
        kind=weight.kind,
        codes=room.view(torch.float8_e4m3fn if weight.kind == "e4m3" else torch.int32),
        scales=scale_words(weight),
        shape=weight.shape,
        order=weight.order,
    )


def _block_bytes(weight: QuantisedWeight, first: int) -> torch.Tensor:  # [lines, blocks, BLOCK]
    """Some outputs with one code in each byte, padded with zeros."""
    codes = weight.codes[first : first + _ROWS_AT_ONCE]
    if weight.has_nibbles:
        codes = unpack_nibbles(codes, weight.block)[:, : weight.inputs]
    rows, inputs = codes.shape
    padded = F.pad(codes.view(torch.uint8), (0, -inputs % BLOCK, 0, -rows % LINES))
    return padded.reshape(len(padded), -1, BLOCK)


def _arrange_bytes(codes: torch.Tensor) -> torch.Tensor:  # [lines, blocks, BLOCK] both
    """Input 64 a + 16 b + 8 c + 2 d + e is byte (a, d, b, c, e): thread d reads 16 bytes."""
    parts = codes.reshape(*codes.shape[:2], 2, 4, 2, 4, 2)
    return parts.permute(0, 1, 2, 5, 3, 4, 6).flatten(2)


def _arrange_nibbles(codes: torch.Tensor) -> torch.Tensor:  # [.., BLOCK] -> [.., BLOCK / 2]
    """Input 32 a + 16 b + 8 c + 2 d + e is nibble 2 b + c + 4 e of word (d, a)."""
    parts = codes.reshape(*codes.shape[:2], 4, 2, 2, 4, 2)
    nibbles = parts.permute(0, 1, 5, 2, 6, 3, 4).flatten(2)  # d, a, e, b, c
    return nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)


def scale_words(weight: QuantisedWeight) -> ScaleWords:
    """The scales of a weight in words, without loss."""
    stored = weight.scales
    form, group = _form(weight), 0 if stored.are_per_row else stored.group
    zeros, factors = stored.zeros, stored.factors
    if stored.has_float_zeros:  # only codes of groups are widened in float32
        group = stored.group
    else:
        zeros = zeros.int()
    if form in ("e8m0", "e8m0 of 32", "e4m3"):
        words = _four_in_a_word(stored.scales)
    elif form == "float32":
        steps = widen_scales(stored.scales)
        steps = steps * factors if len(factors) else steps
        words, factors = steps.contiguous().view(torch.int32), factors.new_empty(0)
    else:
        middle = INT4_MIDDLE if weight.kind == "int4" else 0
        zeros = zeros if len(zeros) else torch.full_like(stored.scales, middle, dtype=torch.int32)
        words = (stored.scales.contiguous().view(torch.int16).int() & 0xFFFF) | (zeros << 16)
        zeros = zeros.new_empty(0, zeros.shape[1])  # a slice would keep the memory of all
    if words.stride(0) != words.shape[1]:  # of one row, any stride counts as contiguous but for TMA
        words = words.clone(memory_format=torch.contiguous_format)
    return ScaleWords(form=form, words=words, zeros=zeros, factors=factors, group=group)


def _form(weight: QuantisedWeight) -> WordForm:
    """Scales of one byte share words if no group crosses the end of a block."""
    scales, group = weight.scales, weight.scales.group
    is_shared = not scales.are_per_row and group & (group - 1) == 0
    if scales.scales.dtype == torch.uint8:
        if is_shared and weight.kind == "e2m1" and group == _MX_GROUP and _are_usual(scales.scales):
            return "e8m0 of 32"
        return "e8m0" if is_shared else "float32"
    if scales.scales.dtype == torch.float8_e4m3fn:
        return "e4m3" if is_shared else "float32"
    if len(scales.factors) or scales.has_float_zeros:
        return "float32"
    halves: dict[torch.dtype, WordForm] = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
    return halves.get(scales.scales.dtype, "float32")


def _are_usual(scales: torch.Tensor) -> bool:  # e8m0
    """Whether all are numbers from 2**-126 to 2: then 2**126 times a scale is a bfloat16."""
    return int(scales.min()) >= 1 and int(scales.max()) <= _MOST_USUAL


def _four_in_a_word(scales: torch.Tensor) -> torch.Tensor:  # [groups, out] -> [groups / 4, out]
    """Neighbouring groups of an output, the first in the low bits."""
    groups, rows = scales.shape
    padded = F.pad(scales.view(torch.uint8), (0, 0, 0, -groups % _PER_WORD))
    by_word = padded.reshape(-1, _PER_WORD, rows).transpose(1, 2).contiguous()
    return by_word.view(torch.int32).squeeze(2)
