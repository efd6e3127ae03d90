"""The gated norm of recurrent layers: a program per few heads."""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.attention.splits_triton import EXACT
from outrider.ops.norm_rope.rms_norm import Norm
from outrider.ops.norm_rope.rms_norm_triton import scaled

_HEADS = 8  # of one program


@triton.jit(do_not_specialize=["num_heads"])
def _gated_norm_kernel(
    read, gate, weight, out, gate_stride, num_heads, heads, dim, eps,
    HEADS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    head = (tl.program_id(0) * HEADS + tl.arange(0, HEADS)).to(tl.int64)[:, None]
    channel = tl.arange(0, BLOCK)[None, :]
    inside = (head < num_heads) & (channel < dim)
    scales = tl.load(weight + channel, mask=channel < dim, other=0.0)
    overlap.begin(PDL)
    values = tl.load(read + head * dim + channel, mask=inside, other=0.0).to(tl.float32)
    at = gate + head // heads * gate_stride + head % heads * dim + channel
    opening = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    normed = scaled(values, tl.sum(values * values, 1)[:, None] / dim, scales, eps)
    y = normed * opening * tl.sigmoid(opening)
    tl.store(out + head * dim + channel, y, mask=inside)


def gated_norm_triton(
    read: torch.Tensor,  # [num_query, heads, dim]
    gate: torch.Tensor,  # [num_query, heads * dim], contiguous channels
    norm: Norm,
) -> torch.Tensor:  # [num_query, heads * dim]
    """`gated_norm` in one launch."""
    num_query, heads, dim = read.shape
    assert read.is_contiguous()
    assert gate.stride(1) == 1
    out = torch.empty((num_query, heads * dim), dtype=read.dtype, device=read.device)
    kernel: Any = _gated_norm_kernel[(triton.cdiv(num_query * heads, _HEADS),)]
    kernel(
        read,
        gate,
        norm.weight,
        out,
        gate.stride(0),
        num_query * heads,
        heads,
        dim,
        norm.eps,
        HEADS=_HEADS,
        BLOCK=triton.next_power_of_2(dim),
        PDL=overlap.is_on(read),
        **EXACT,
        **overlap.options(read),
    )
    return out
