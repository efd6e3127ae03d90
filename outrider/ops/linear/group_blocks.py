"""Integers in groups, of GPTQ, AWQ or compressed-tensors, as weight blocks of a CPU."""

import torch

from outrider.ops.compiled.block_kind import BLOCK, GROUP_KINDS
from outrider.ops.compiled.block_parts import BlockParts
from outrider.ops.linear.block_linear import BlockLinear
from outrider.ops.linear.quantised_weight import (
    INT4_MIDDLE,
    QuantisedWeight,
    unpack_nibbles,
    widen_scales,
)

_SIGN = 0x80  # of a signed byte; flipping it adds 128


def fits_blocks(weight: QuantisedWeight) -> bool:
    """Whether codes and zero points are integers, and groups are whole blocks."""
    group = weight.scales.group
    if weight.scales.has_float_zeros:
        return False
    return weight.kind in GROUP_KINDS and group % BLOCK == 0 and weight.inputs % group == 0


def group_linear(weight: QuantisedWeight) -> BlockLinear:
    """A linear layer over the codes as they are stored, without loss."""
    return BlockLinear([group_parts(weight)], weight.inputs, weight.order)


def group_parts(weight: QuantisedWeight) -> BlockParts:
    """The numbers of a weight that fits. Its inputs are in the order of the codes."""
    scales = weight.scales
    blocks = scales.group // BLOCK
    span = blocks & -blocks  # the largest power of two that divides it
    steps = widen_scales(scales.scales)
    if len(scales.factors):
        steps = steps * scales.factors
    zeros = scales.zeros.to(torch.int16)
    if not len(zeros):
        middle = INT4_MIDDLE if weight.kind == "int4" else 0
        zeros = torch.full(steps.shape, middle, dtype=torch.int16)
    heads = (each.t().repeat_interleave(blocks // span, 1) for each in (steps, zeros))
    if weight.kind == "int4":
        return BlockParts(
            kind=GROUP_KINDS["int4"],
            codes=unpack_nibbles(weight.codes, weight.block)[:, : weight.inputs].contiguous(),
            heads=tuple(heads),
            steps=(),
        )
    codes = weight.codes.view(torch.uint8) ^ _SIGN
    return BlockParts(kind=GROUP_KINDS["int8"], codes=codes, heads=tuple(heads), steps=())
