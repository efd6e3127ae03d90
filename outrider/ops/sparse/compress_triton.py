"""Entries of compressed blocks that end in a step, as `compress.py` defines them, in one launch.

One program per block that may end; those that do not end return at once. Sums are float32 and
rounded once. Sources and targets are int64, angles, bias and norm float32, states any float type.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.norm_rope.partial_rope import TailRotation
from outrider.ops.norm_rope.partial_rope_triton import rotated_tail
from outrider.ops.sparse.compress import Compressor
from outrider.ops.sparse.compressed_index import BlockPlan
from outrider.ops.sparse.ring_tokens import RingTokens

_TOKENS = 8  # of a window at once
# Below every gate, and finite: tokens that are absent leave the running state as it is.
_NOTHING_SEEN = tl.constexpr(-1.0e30)


@triton.jit(do_not_specialize=["num_slots"])
def _entries_kernel(
    ring,  # [num_slots, 2 * SERIES * WIDTH] and more: values, then gates
    fresh,  # likewise
    sources,  # [windows, WINDOW]
    targets,  # [windows]
    bias,  # [WINDOW, WIDTH]
    weight,  # [WIDTH]
    cos,  # [windows, PAIRS]
    sin,
    pool,  # [entries, WIDTH]
    ring_stride,
    fresh_stride,
    num_slots,
    eps,
    WINDOW: tl.constexpr,
    SERIES: tl.constexpr,
    WIDTH: tl.constexpr,
    PAIRS: tl.constexpr,
    TOKENS: tl.constexpr,
    DIM: tl.constexpr,
    PDL: tl.constexpr,
):
    window = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, DIM)
    inside = channel < WIDTH
    overlap.begin(PDL)
    target = tl.load(targets + window)
    if target == 0:  # on page 0, which is padding: the block does not end in this step
        return
    best = tl.full((DIM,), _NOTHING_SEEN, tl.float32)
    total = tl.zeros((DIM,), tl.float32)
    mean = tl.zeros((DIM,), tl.float32)
    for first in range(0, WINDOW, TOKENS):
        place = first + tl.arange(0, TOKENS)
        source = tl.load(sources + window * WINDOW + place, mask=place < WINDOW, other=-1)
        is_old = (source >= 0) & (source < num_slots)
        is_fresh = source >= num_slots
        # The first half of a window reads the first of two series, the second half the other.
        series = (place * SERIES // WINDOW) * WIDTH
        column = series[:, None] + channel[None, :]
        old = ring + source[:, None] * ring_stride + column
        new = fresh + (source - num_slots)[:, None] * fresh_stride + column
        old_mask = is_old[:, None] & inside[None, :]
        new_mask = is_fresh[:, None] & inside[None, :]
        value = tl.load(old, mask=old_mask, other=0.0).to(tl.float32)
        value += tl.load(new, mask=new_mask, other=0.0).to(tl.float32)
        gate = tl.load(old + SERIES * WIDTH, mask=old_mask, other=0.0).to(tl.float32)
        gate += tl.load(new + SERIES * WIDTH, mask=new_mask, other=0.0).to(tl.float32)
        extra = bias + place[:, None] * WIDTH + channel[None, :]
        is_known = old_mask | new_mask
        gate += tl.load(extra, mask=is_known, other=0.0)
        gate = tl.where(is_known, gate, float("-inf"))
        new_best = tl.maximum(best, tl.max(gate, 0))
        share = tl.exp(gate - new_best[None, :])
        rescale = tl.exp(best - new_best)
        total = total * rescale + tl.sum(share, 0)
        mean = mean * rescale + tl.sum(share * value, 0)
        best = new_best
    mean = tl.where(inside, mean / total, 0.0)
    mean = mean * tl.rsqrt(tl.sum(mean * mean) / WIDTH + eps)
    mean = mean * tl.load(weight + channel, mask=inside, other=0.0)
    angles = window * PAIRS
    even_cos, odd_cos, even_sin, odd_sin = rotated_tail(
        mean, cos + angles, sin + angles, WIDTH, PAIRS, DIM
    )
    entry = tl.reshape(tl.join(even_cos - odd_sin, odd_cos + even_sin), (DIM,))
    tl.store(pool + target * WIDTH + channel, entry.to(pool.dtype.element_ty), mask=inside)


def store_entries_triton(
    tokens: RingTokens,  # contiguous channels
    block: BlockPlan,
    compressor: Compressor,
    rotation: TailRotation,
    pool: torch.Tensor,
) -> None:
    """`store_entries` in one launch."""
    ring, fresh, targets = tokens.ring, tokens.fresh, block.targets
    window, width = compressor.bias.shape
    assert ring.stride(1) == fresh.stride(1) == 1
    assert pool.is_contiguous()
    if not targets.numel():
        return
    kernel: Any = _entries_kernel[(targets.numel(),)]
    kernel(
        ring,
        fresh,
        block.ring.sources,
        targets,
        compressor.bias,
        compressor.norm.weight,
        rotation.cos,
        rotation.sin,
        pool,
        ring.stride(0),
        fresh.stride(0),
        ring.shape[0],
        compressor.norm.eps,
        WINDOW=window,
        SERIES=ring.shape[1] // (2 * width),
        WIDTH=width,
        PAIRS=rotation.cos.shape[1],
        TOKENS=_TOKENS,
        DIM=triton.next_power_of_2(width),
        PDL=overlap.is_on(pool),
        num_warps=4,
        **overlap.options(pool),
    )
