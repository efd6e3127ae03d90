"""GGUF blocks as codes with a scale per group, which the kernels of quantised weights read."""

import torch

from outrider.ops.compiled.block_kind import BLOCK
from outrider.ops.compiled.gguf_rows import GgufRows
from outrider.ops.linear.quantised_weight import GroupScales, QuantisedWeight, pack_nibbles

_NIBBLE = 4  # bits
_LEAST_STEP = 2.0**-60  # in place of a scale of 0, so that a minimum is a zero point times it


def codes_of_blocks(rows: GgufRows) -> QuantisedWeight:
    """The same numbers. Codes of 5 and 6 bits take 8; a minimum becomes a zero point in float32."""
    parts = rows.parts()
    kind, (outputs, inputs) = parts.kind, rows.shape
    num = max(kind.num_steps, 1)  # groups of a block
    scales = parts.heads[0].repeat_interleave(num * parts.span, 1)  # [out, groups]
    if kind.num_steps:
        steps = torch.stack(parts.steps[: kind.num_steps], 2).flatten(1)
        scales = scales.float() * steps.float()
    zeros = torch.empty(outputs, 0, dtype=torch.int8)
    if kind.has_minimum:
        minima = parts.heads[1].float().repeat_interleave(parts.span, 1)  # [out, blocks]
        if kind.num_steps:
            minima = minima * parts.steps[-1].float()
        scales = torch.where(scales == 0, _LEAST_STEP, scales.float())
        zeros = -minima.repeat_interleave(num, 1) / scales
    is_nibble = kind.bits == _NIBBLE
    codes = parts.codes
    return QuantisedWeight(
        kind="int4" if is_nibble else "int8",
        codes=pack_nibbles(codes, 2) if is_nibble else _signed(codes, kind.offset),
        scales=GroupScales(
            scales=scales.t(), zeros=zeros.t(), factors=torch.empty(0), group=BLOCK // num
        ),
        inputs=inputs,
        block=2 if is_nibble else 1,
        order=torch.empty(0, dtype=torch.int64),
    )


def _signed(codes: torch.Tensor, offset: int) -> torch.Tensor:  # [out, in] uint8 -> int8
    return (codes.to(torch.int16) - offset).to(torch.int8)
