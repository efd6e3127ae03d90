"""Hyper-connections as `hyper_connections.py` defines them: three launches per part of a layer.

Sums are float32 and split by channel alone: no token's bits depend on other tokens.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.linear.hyper_connections import MixedStreams, MixWeights
from outrider.ops.norm_rope.rms_norm import Norm

_TOKENS = 16  # of a tile
_SPLIT = 512  # channels of all streams that a program sums over
_CHANNELS = 64  # at once
_WRITTEN = 256  # channels of every stream that a program writes


@triton.jit(do_not_specialize=["num_tokens"])
def _project_kernel(
    streams,  # [num_tokens, WIDTH]
    projection,  # [MIXES, WIDTH] float32
    sums,  # [splits, num_tokens, MIXES] float32
    squares,  # [splits, num_tokens] float32
    num_tokens,
    WIDTH: tl.constexpr,
    MIXES: tl.constexpr,
    MIX_BLOCK: tl.constexpr,
    TOKENS: tl.constexpr,
    SPLIT: tl.constexpr,
    CHANNELS: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    is_token = token < num_tokens
    mix = tl.arange(0, MIX_BLOCK)
    is_mix = mix < MIXES
    total = tl.zeros((TOKENS, MIX_BLOCK), tl.float32)
    square = tl.zeros((TOKENS,), tl.float32)
    overlap.begin(PDL)
    for start in range(0, SPLIT, CHANNELS):
        channel = tl.program_id(1) * SPLIT + start + tl.arange(0, CHANNELS)
        inside = (channel < WIDTH)[None, :]
        at = streams + token[:, None].to(tl.int64) * WIDTH + channel[None, :]
        x = tl.load(at, mask=is_token[:, None] & inside, other=0.0).to(tl.float32)
        w_at = projection + mix[:, None] * WIDTH + channel[None, :]
        w = tl.load(w_at, mask=is_mix[:, None] & inside, other=0.0)
        total = tl.dot(x, tl.trans(w), total, input_precision=PRECISION)
        square += tl.sum(x * x, 1)
    row = tl.program_id(1).to(tl.int64) * num_tokens + token
    to = sums + row[:, None] * MIXES + mix[None, :]
    tl.store(to, total, mask=is_token[:, None] & is_mix[None, :])
    tl.store(squares + row, square, mask=is_token)


@triton.jit(do_not_specialize=["num_tokens", "num_splits"])
def _read_kernel(
    streams,  # [num_tokens, STREAMS, HIDDEN]
    sums,  # [num_splits, num_tokens, MIXES] float32
    squares,  # [num_splits, num_tokens] float32
    base,  # [MIXES] float32
    scale,  # [MIXES] float32
    weight,  # [HIDDEN] of the norm
    x,  # [num_tokens, HIDDEN]
    post,  # [num_tokens, STREAMS] float32
    comb,  # [num_tokens, STREAMS, STREAMS] float32
    num_tokens,
    num_splits,
    mix_eps,
    norm_eps,
    eps,
    STREAMS: tl.constexpr,
    HIDDEN: tl.constexpr,
    MIXES: tl.constexpr,
    ROUNDS: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_LAST: tl.constexpr,  # nothing is written back
    PDL: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    stream = tl.arange(0, STREAMS)
    split = tl.arange(0, SPLITS)
    is_split = split < num_splits
    overlap.begin(PDL)
    row = split * num_tokens + token
    square = tl.sum(tl.load(squares + row, mask=is_split, other=0.0), 0)
    unit = tl.rsqrt(square / (STREAMS * HIDDEN) + mix_eps)
    at = sums + row[:, None] * MIXES + stream[None, :]
    raw = tl.sum(tl.load(at, mask=is_split[:, None], other=0.0), 0) * unit
    logit = tl.load(base + stream) + raw * tl.load(scale + stream)
    pre = tl.sigmoid(logit) + eps
    if not IS_LAST:
        raw = tl.sum(tl.load(at + STREAMS, mask=is_split[:, None], other=0.0), 0) * unit
        logit = tl.load(base + STREAMS + stream) + raw * tl.load(scale + STREAMS + stream)
        tl.store(post + token * STREAMS + stream, 2.0 * tl.sigmoid(logit))
        column = 2 * STREAMS + stream[:, None] * STREAMS + stream[None, :]  # from, to
        at = sums + row[:, None, None] * MIXES + column[None, :, :]
        raw = tl.sum(tl.load(at, mask=is_split[:, None, None], other=0.0), 0) * unit
        logits = tl.load(base + column) + raw * tl.load(scale + column)
        shares = tl.exp(logits - tl.max(logits, 1)[:, None])
        shares = shares / tl.sum(shares, 1)[:, None] + eps
        shares = shares / (tl.sum(shares, 0)[None, :] + eps)
        for _ in range(ROUNDS - 1):
            shares = shares / (tl.sum(shares, 1)[:, None] + eps)
            shares = shares / (tl.sum(shares, 0)[None, :] + eps)
        to = stream[:, None] * STREAMS + stream[None, :]
        tl.store(comb + token * STREAMS * STREAMS + to, shares)
    channel = tl.arange(0, BLOCK)
    inside = channel < HIDDEN
    source = streams + token * STREAMS * HIDDEN + stream[:, None] * HIDDEN + channel[None, :]
    values = tl.load(source, mask=inside[None, :], other=0.0).to(tl.float32)
    # Rounded where the reference rounds: the mixture is a hidden state in the type of the model.
    mixed = tl.sum(values * pre[:, None], 0).to(x.dtype.element_ty).to(tl.float32)
    normed = mixed * tl.rsqrt(tl.sum(mixed * mixed) / HIDDEN + norm_eps)
    normed = normed * tl.load(weight + channel, mask=inside, other=0.0).to(tl.float32)
    tl.store(x + token * HIDDEN + channel, normed.to(x.dtype.element_ty), mask=inside)


@triton.jit
def _write_kernel(
    y,  # [num_tokens, HIDDEN]
    streams,  # [num_tokens, STREAMS, HIDDEN]
    post,  # [num_tokens, STREAMS] float32
    comb,  # [num_tokens, STREAMS, STREAMS] float32
    out,  # [num_tokens, STREAMS, HIDDEN]
    STREAMS: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < HIDDEN
    stream = tl.arange(0, STREAMS)
    overlap.begin(PDL)
    at = token * STREAMS * HIDDEN + stream[:, None] * HIDDEN + channel[None, :]
    old = tl.load(streams + at, mask=inside[None, :], other=0.0).to(tl.float32)
    square = token * STREAMS * STREAMS + stream[:, None] * STREAMS + stream[None, :]
    share = tl.load(comb + square)  # [from, to]
    result = tl.load(y + token * HIDDEN + channel, mask=inside, other=0.0).to(tl.float32)
    own = tl.load(post + token * STREAMS + stream)
    new = tl.sum(share[:, :, None] * old[:, None, :], 0) + own[:, None] * result[None, :]
    tl.store(out + at, new.to(out.dtype.element_ty), mask=inside[None, :])


def read_streams_triton(
    streams: torch.Tensor,  # contiguous
    weights: MixWeights,
    norm: Norm,
    *,
    eps: float,
    rounds: int,  # 0 after the last layer, where only `x` is computed
) -> MixedStreams:
    """`read_streams` in two launches."""
    assert streams.is_contiguous()
    num_tokens, num, hidden = streams.shape
    projection = weights.projection
    splits = triton.cdiv(num * hidden, _SPLIT)
    sums = projection.new_empty((splits, num_tokens, projection.shape[0]))
    squares = projection.new_empty((splits, num_tokens))
    post = projection.new_empty((num_tokens, num))
    comb = projection.new_empty((num_tokens, num, num))
    x = torch.empty((num_tokens, hidden), dtype=streams.dtype, device=streams.device)
    _project(streams, projection, sums, squares)
    kernel: Any = _read_kernel[(num_tokens,)]
    kernel(
        streams,
        sums,
        squares,
        weights.base,
        weights.scale,
        norm.weight,
        x,
        post,
        comb,
        num_tokens,
        splits,
        weights.norm_eps,
        norm.eps,
        eps,
        STREAMS=num,
        HIDDEN=hidden,
        MIXES=projection.shape[0],
        ROUNDS=rounds,
        SPLITS=triton.next_power_of_2(splits),
        BLOCK=triton.next_power_of_2(hidden),
        IS_LAST=rounds == 0,
        PDL=overlap.is_on(streams),
        num_warps=8,
        **overlap.options(streams),
    )
    return MixedStreams(x=x, post=post, comb=comb)


def _project(
    streams: torch.Tensor, projection: torch.Tensor, sums: torch.Tensor, squares: torch.Tensor
) -> None:
    num_tokens, width = streams.shape[0], projection.shape[1]
    kernel: Any = _project_kernel[(triton.cdiv(num_tokens, _TOKENS), sums.shape[0])]
    kernel(
        streams,
        projection,
        sums,
        squares,
        num_tokens,
        WIDTH=width,
        MIXES=projection.shape[0],
        MIX_BLOCK=max(16, triton.next_power_of_2(projection.shape[0])),
        TOKENS=_TOKENS,
        SPLIT=_SPLIT,
        CHANNELS=_CHANNELS,
        # Half-precision streams are exact in tf32; weights split in two tf32 parts keep 22 bits.
        PRECISION="ieee" if streams.dtype == torch.float32 else "tf32x3",
        PDL=overlap.is_on(streams),
        num_warps=4,
        **overlap.options(streams),
    )


def write_streams_triton(
    y: torch.Tensor,  # contiguous
    streams: torch.Tensor,  # contiguous
    mixed: MixedStreams,
) -> torch.Tensor:
    """`write_streams` in one launch."""
    assert y.is_contiguous()
    assert streams.is_contiguous()
    num_tokens, num, hidden = streams.shape
    out = torch.empty_like(streams)
    kernel: Any = _write_kernel[(num_tokens, triton.cdiv(hidden, _WRITTEN))]
    kernel(
        y,
        streams,
        mixed.post,
        mixed.comb,
        out,
        STREAMS=num,
        HIDDEN=hidden,
        BLOCK=_WRITTEN,
        PDL=overlap.is_on(y),
        num_warps=4,
        **overlap.options(y),
    )
    return out
