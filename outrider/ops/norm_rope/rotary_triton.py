"""The angles of a step; and norm, rotation and KV write of heads in one kernel.

The kernels of `rotation_at_reference` and `rotate_and_store_reference`.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.attention.storable_kv_triton import marked_key, storable
from outrider.ops.norm_rope.head_norm import HeadNorm
from outrider.ops.norm_rope.rms_norm_triton import EXACT, scaled
from outrider.ops.norm_rope.rotary import RotaryFrequencies, Rotation

_MAX_HEADS = 8  # of one program: even a single token runs as several programs
_MAX_PAIRS = 512  # of one program with 4 warps: 4 pairs per thread


@triton.jit(do_not_specialize_on_alignment=["positions"])  # any view of a plan
def _angles_kernel(
    positions, frequencies, cos, sin, half, scale, HALF_BLOCK: tl.constexpr, PDL: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    pairs = tl.arange(0, HALF_BLOCK)
    inside = pairs < half
    per_position = tl.load(frequencies + pairs, mask=inside, other=0.0)
    overlap.begin(PDL)
    angles = tl.load(positions + token).to(tl.float32) * per_position
    # A channel of frequency 0 is not rotated, and so not scaled either.
    scaled_cos = tl.cos(angles) * tl.where(per_position == 0.0, 1.0, scale)
    scaled_sin = tl.sin(angles) * scale
    first = token * 2 * half + pairs
    tl.store(cos + first, scaled_cos, mask=inside)
    tl.store(cos + first + half, scaled_cos, mask=inside)
    tl.store(sin + first, -scaled_sin, mask=inside)
    tl.store(sin + first + half, scaled_sin, mask=inside)


@triton.jit(do_not_specialize_on_alignment=["slots"])  # any view of a plan
def _rotate_and_store_kernel(
    heads,
    cos,
    sin,
    weight,
    layer,
    slots,
    eps,
    token_stride,
    slot_stride,
    num_queries,
    num_rotated,
    num_heads,
    HAS_NORM: tl.constexpr,
    HALF: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """One token and a group of its heads: queries, then keys, then values."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEAD_BLOCK + tl.arange(0, HEAD_BLOCK)[:, None]
    pair = tl.arange(0, HALF_BLOCK)[None, :]
    inside = (head < num_heads) & (pair < HALF)
    is_rotated = head < num_rotated
    columns = head * 2 * HALF + pair  # of the first channel of each pair

    if HAS_NORM:
        is_scaled = inside & is_rotated
        low_scales = tl.load(weight + columns, mask=is_scaled, other=0.0)
        high_scales = tl.load(weight + columns + HALF, mask=is_scaled, other=0.0)
    overlap.begin(PDL)
    angle = token * 2 * HALF + pair
    c = tl.load(cos + angle, mask=pair < HALF, other=0.0).to(tl.float32)
    s = tl.load(sin + angle + HALF, mask=pair < HALF, other=0.0).to(tl.float32)
    slot = tl.load(slots + token).to(tl.int64)
    source = heads + token * token_stride + columns
    low = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)

    x, y = low, high
    if HAS_NORM:
        mean_square = tl.sum(low * low + high * high, axis=1, keep_dims=True) / (2 * HALF)
        x = scaled(low, mean_square, low_scales, eps)
        y = scaled(high, mean_square, high_scales, eps)
    low = tl.where(is_rotated, x * c - y * s, low)
    high = tl.where(is_rotated, y * c + x * s, high)

    is_query = head < num_queries
    tl.store(source, low, mask=inside & is_query)
    tl.store(source + HALF, high, mask=inside & is_query)
    target = layer + slot * slot_stride + columns - num_queries * 2 * HALF
    TYPE: tl.constexpr = layer.dtype.element_ty
    low, high = storable(low.to(TYPE), is_rotated), storable(high.to(TYPE), is_rotated)
    values = source + (num_heads - num_rotated) * 2 * HALF  # of each key
    is_key = inside & ~is_query & is_rotated
    low = marked_key(low, tl.load(values, mask=is_key, other=0.0).to(TYPE))
    high = marked_key(high, tl.load(values + HALF, mask=is_key, other=0.0).to(TYPE))
    tl.store(target, low, mask=inside & (head >= num_queries))
    tl.store(target + HALF, high, mask=inside & (head >= num_queries))


def rotation_at_triton(
    positions: torch.Tensor,  # [num_query] int64
    frequencies: RotaryFrequencies,
) -> Rotation:
    """Scaled cosines and sines, each pair's twice; the first half of the sines is negated."""
    num_query, half = positions.shape[0], frequencies.radians.shape[0] // 2
    shape, dtype = (2, num_query, 1, 2 * half), frequencies.dtype
    both = torch.empty(shape, dtype=dtype, device=positions.device)
    cos, sin = both[0], both[1]
    kernel: Any = _angles_kernel[(num_query,)]
    kernel(
        positions,
        frequencies.radians[:half],
        cos,
        sin,
        half,
        frequencies.scale,
        HALF_BLOCK=triton.next_power_of_2(half),
        PDL=overlap.is_on(positions),
        num_warps=1,
        **overlap.options(positions),
    )
    return Rotation(cos, sin)


def rotate_and_store_triton(
    heads: torch.Tensor,  # [num_query, heads + 2 * kv_heads, head_dim], heads side by side
    rotation: Rotation,
    norm: HeadNorm,
    layer: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim]
    slots: torch.Tensor,  # [num_query] int64
) -> None:
    """Normalise and rotate queries in place; write keys, likewise rotated, and values to slots."""
    num_query, num_heads, head_dim = heads.shape
    weight, num_kv = norm.weight, layer.shape[2]
    assert heads.stride() == (heads.stride(0), head_dim, 1)
    assert layer.is_contiguous()
    half = head_dim // 2
    half_block = triton.next_power_of_2(half)
    head_block = min(_MAX_HEADS, max(_MAX_PAIRS // half_block, 1))
    kernel: Any = _rotate_and_store_kernel[(num_query, triton.cdiv(num_heads, head_block))]
    kernel(
        heads,
        rotation.cos,
        rotation.sin,
        weight if len(weight) else heads,
        layer,
        slots,
        norm.eps,
        heads.stride(0),
        layer.stride(1),
        num_heads - num_kv,
        num_heads - num_kv // 2,
        num_heads,
        HAS_NORM=len(weight) > 0,
        HALF=half,
        HEAD_BLOCK=head_block,
        HALF_BLOCK=half_block,
        PDL=overlap.is_on(heads),
        num_warps=4,
        **EXACT,
        **overlap.options(heads),
    )
