"""Gumbel noise with the bits of `gumbel_noise.py`.

Launched without fused multiply-adds and with correctly rounded division: both would change bits.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

BLOCK = 1024

_MINUS_LN2_PER_BIT = tl.constexpr(-0.6931471805599453 * 2.0**-23)


@triton.jit
def _hash(tokens, seed, position):
    """Uniform 32-bit words of the tokens of one row."""
    key = (seed + 1).to(tl.uint64) * 0x9E3779B97F4A7C15 + position.to(tl.uint64)
    key = (key ^ (key >> 33)) * 0xFF51AFD7ED558CCD
    key = (key ^ (key >> 33)) * 0xC4CEB9FE1A85EC53
    key = key ^ (key >> 33)
    bits = tokens.to(tl.uint32) + key.to(tl.uint32)
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15)) * 0x846CA68B + (key >> 32).to(tl.uint32)
    bits = (bits ^ (bits >> 16)) * 0x85EBCA6B
    bits = (bits ^ (bits >> 13)) * 0xC2B2AE35
    return bits ^ (bits >> 16)


@triton.jit
def _exponential(uniform):
    bits = uniform.to(tl.int32, bitcast=True)
    tail = bits >> 31
    h = ((bits ^ tail).to(tl.float32) + 0.5) * 2.3283064365386963e-10  # 2^-32
    half = h.to(tl.int32, bitcast=True)
    exponent = ((half & 0x7F800000) - 0x3F000000) & tail
    t = (half - exponent).to(tl.float32, bitcast=True)
    t = tl.abs(t - (tail & 0x3F800000).to(tl.float32, bitcast=True))
    r = tl.div_rn(t, t - 2.0)
    square = r * r
    product = square * -0.3420362 - 0.39593187
    product = product * square - 0.6667585
    product = (product * square - 1.9999996) * r
    return product + exponent.to(tl.float32) * _MINUS_LN2_PER_BIT


@triton.jit
def _negative_log(x):
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - 0x3F3504F3) & -0x800000
    m = (bits - exponent).to(tl.float32, bitcast=True)
    r = tl.div_rn(m - 1.0, m + 1.0)
    square = r * r
    product = square * -0.4129491 - 0.6665227
    product = (product * square - 2.0000002) * r
    return product + exponent.to(tl.float32) * _MINUS_LN2_PER_BIT


@triton.jit
def gumbel_of(tokens, seed, position):
    """Noise of a block of tokens of one row; kernels that fuse the noise call this."""
    return _negative_log(_exponential(_hash(tokens, seed, position)))


@triton.jit
def _gumbel_kernel(seeds, positions, tokens, noise, width, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    ids = tl.load(tokens + row * stride + columns, mask=inside, other=0)
    drawn = gumbel_of(ids, tl.load(seeds + row), tl.load(positions + row))
    tl.store(noise + row * width + columns, drawn, mask=inside)


def gumbel_at_triton(
    seeds: torch.Tensor,  # [n] int64
    positions: torch.Tensor,  # [n] int64
    tokens: torch.Tensor,  # [n, k] int32 or int64, unit stride along k; rows may be expanded
) -> torch.Tensor:  # [n, k] float32
    """`gumbel_at` in one launch."""
    num_rows, width = tokens.shape
    noise = torch.empty((num_rows, width), dtype=torch.float32, device=tokens.device)
    kernel: Any = _gumbel_kernel[(num_rows, triton.cdiv(width, BLOCK))]
    kernel(
        seeds,
        positions,
        tokens,
        noise,
        width,
        tokens.stride(0),
        BLOCK=BLOCK,
        enable_fp_fusion=False,
    )
    return noise
