"""The norm of latents, the rotation of keys and queries, and the write to the pool.

The kernels of `store_latents_reference` and `rotate_queries_reference`.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.attention.storable_kv_triton import is_finite, storable
from outrider.ops.norm_rope.rms_norm import Norm
from outrider.ops.norm_rope.rms_norm_triton import scaled
from outrider.ops.norm_rope.rotary import Rotation

_MAX_PAIRS = 512  # rotated pairs of one program with 4 warps: 4 per thread


@triton.jit
def _rotated(source, cos, sin, token, pair, inside, HALF: tl.constexpr):
    """Both halves of heads, rotated to their position."""
    angle = token * 2 * HALF + pair
    c = tl.load(cos + angle, mask=pair < HALF, other=0.0).to(tl.float32)
    s = tl.load(sin + angle + HALF, mask=pair < HALF, other=0.0).to(tl.float32)
    x = tl.load(source + pair, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(source + HALF + pair, mask=inside, other=0.0).to(tl.float32)
    return x * c - y * s, y * c + x * s


@triton.jit(do_not_specialize_on_alignment=["slots"])  # any view of a plan
def _store_kernel(
    latents, cos, sin, weight, layer, slots, eps, token_stride,
    LATENT: tl.constexpr, HALF: tl.constexpr, LATENT_BLOCK: tl.constexpr,
    HALF_BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    channel, pair = tl.arange(0, LATENT_BLOCK), tl.arange(0, HALF_BLOCK)
    inside = channel < LATENT
    scales = tl.load(weight + channel, mask=inside, other=0.0)
    overlap.begin(PDL)
    source = latents + token * token_stride
    target = layer + tl.load(slots + token).to(tl.int64) * (LATENT + 2 * HALF)
    values = tl.load(source + channel, mask=inside, other=0.0).to(tl.float32)
    normed = scaled(values, tl.sum(values * values) / LATENT, scales, eps)
    normed = normed.to(layer.dtype.element_ty)
    # As in `write_latents`: a latent that is not finite is stored as zeros beside a key of NaN.
    is_whole = tl.min(is_finite(normed).to(tl.int32), 0) == 1
    tl.store(target + channel, tl.where(is_whole, normed, 0.0), mask=inside)
    low, high = _rotated(source + LATENT, cos, sin, token, pair, pair < HALF, HALF)
    low = tl.where(is_whole, low, float("nan")).to(layer.dtype.element_ty)
    high = tl.where(is_whole, high, float("nan")).to(layer.dtype.element_ty)
    tl.store(target + LATENT + pair, storable(low, True), mask=pair < HALF)
    tl.store(target + LATENT + HALF + pair, storable(high, True), mask=pair < HALF)


@triton.jit
def _rotate_kernel(
    heads, cos, sin, out, token_stride, head_stride, out_stride, num_heads, nope, latent,
    HALF: tl.constexpr, HEADS_BLOCK: tl.constexpr, HALF_BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS_BLOCK + tl.arange(0, HEADS_BLOCK)[:, None]
    pair = tl.arange(0, HALF_BLOCK)[None, :]
    inside = (head < num_heads) & (pair < HALF)
    overlap.begin(PDL)
    source = heads + token * token_stride + head * head_stride + nope
    low, high = _rotated(source, cos, sin, token, pair, inside, HALF)
    target = out + token * out_stride + head * (latent + 2 * HALF) + latent
    tl.store(target + pair, low, mask=inside)
    tl.store(target + HALF + pair, high, mask=inside)


def store_latents_triton(
    latents: torch.Tensor,  # [num_query, latent + rope], unit stride along the last axis
    rotation: Rotation,
    norm: Norm,  # weight [latent]
    layer: torch.Tensor,  # [pages, page_size, 1, latent + rope] contiguous
    slots: torch.Tensor,  # [num_query] int64
) -> None:
    """Write every latent, normalised, and the key beside it, rotated, to its slot."""
    (num_query, width), latent = latents.shape, norm.weight.shape[0]
    assert latents.stride(1) == 1
    assert layer.is_contiguous()
    half = (width - latent) // 2
    kernel: Any = _store_kernel[(num_query,)]
    kernel(
        latents, rotation.cos, rotation.sin, norm.weight, layer, slots, norm.eps, latents.stride(0),
        LATENT=latent, HALF=half, LATENT_BLOCK=triton.next_power_of_2(latent),
        HALF_BLOCK=triton.next_power_of_2(half), PDL=overlap.is_on(latents),
        num_warps=4, **overlap.options(latents),
    )  # fmt: skip


def rotate_queries_triton(
    heads: torch.Tensor,  # [num_query, heads, nope + rope], unit stride along the last axis
    rotation: Rotation,
    out: torch.Tensor,  # [num_query, heads, latent + rope] contiguous; last channels written
) -> None:
    """Write the rotated part of every query behind the place of its latent part."""
    rope = rotation.cos.shape[-1]
    num_query, num_heads, dim = heads.shape
    assert heads.stride(2) == 1
    assert out.is_contiguous()
    half_block = triton.next_power_of_2(rope // 2)
    block = min(triton.next_power_of_2(num_heads), max(_MAX_PAIRS // half_block, 1))
    kernel: Any = _rotate_kernel[(num_query, triton.cdiv(num_heads, block))]
    kernel(
        heads, rotation.cos, rotation.sin, out, heads.stride(0), heads.stride(1), out.stride(0),
        num_heads, dim - rope, out.shape[2] - rope,
        HALF=rope // 2, HEADS_BLOCK=block, HALF_BLOCK=half_block, PDL=overlap.is_on(heads),
        num_warps=4, **overlap.options(heads),
    )  # fmt: skip
