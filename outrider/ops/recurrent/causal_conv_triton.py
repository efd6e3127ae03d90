"""The causal convolution of recurrent layers: a program per block of tokens and of channels."""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.attention.splits_triton import EXACT
from outrider.ops.sparse.ring_tokens import RingTokens

_CHANNELS = 256  # of one program
_TOKENS = 16  # of one program, where a step has more of them


@triton.jit(
    do_not_specialize=["num_query", "num_slots"], do_not_specialize_on_alignment=["sources"]
)
def _conv_kernel(
    ring, fresh, sources, conv_weight, out, fresh_stride, num_query, width, num_slots,
    WINDOW: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    token = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    is_token, is_channel = token < num_query, channel < width
    total = tl.zeros([TOKENS, BLOCK], tl.float32)
    overlap.begin(PDL)
    for place in tl.static_range(WINDOW):
        source = tl.load(sources + token * WINDOW + place, mask=is_token, other=-1)[:, None]
        is_fresh = source >= num_slots
        is_old = (source >= 0) & (source < num_slots)
        old = tl.load(ring + source * width + channel, mask=is_channel & is_old, other=0.0)
        at = fresh + (source - num_slots) * fresh_stride + channel
        new = tl.load(at, mask=is_channel & is_fresh, other=0.0)
        weight = tl.load(conv_weight + channel * WINDOW + place, mask=is_channel, other=0.0)
        total += tl.where(is_fresh, new, old).to(tl.float32) * weight
    inside = is_token[:, None] & is_channel
    tl.store(out + token[:, None] * width + channel, total * tl.sigmoid(total), mask=inside)


def causal_conv_triton(
    tokens: RingTokens,
    sources: torch.Tensor,  # [num_query, window] int64
    conv_weight: torch.Tensor,  # [qkv, window] float32
) -> torch.Tensor:  # [num_query, qkv]
    """`causal_conv` in one launch."""
    ring, fresh = tokens.ring, tokens.fresh
    num_query, width = fresh.shape
    assert fresh.stride(1) == 1
    assert ring.is_contiguous()
    assert conv_weight.is_contiguous()
    out = torch.empty((num_query, width), dtype=fresh.dtype, device=fresh.device)
    per_program = 1 if num_query <= _TOKENS else _TOKENS
    kernel: Any = _conv_kernel[(triton.cdiv(num_query, per_program), triton.cdiv(width, _CHANNELS))]
    kernel(
        ring,
        fresh,
        sources,
        conv_weight,
        out,
        fresh.stride(0),
        num_query,
        width,
        ring.shape[0],
        WINDOW=sources.shape[1],
        TOKENS=per_program,
        BLOCK=_CHANNELS,
        PDL=overlap.is_on(fresh),
        **EXACT,  # few tokens and many have the same bits
        **overlap.options(fresh),
    )
    return out
