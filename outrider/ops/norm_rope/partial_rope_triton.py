"""Rotation of the last channels of vectors, and the norm before it.

The kernel of `rotate_tail_reference` and `norm_and_rotate_reference`.

One program per vector, in float32 and rounded once: no vector depends on the others.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.norm_rope.partial_rope import TailRotation, VectorNorm


@triton.jit
def rotated_tail(values, cos, sin, WIDTH: tl.constexpr, PAIRS: tl.constexpr, DIM: tl.constexpr):
    """The four products of which the rotation of a vector is made; angles are at `cos` and `sin`.

    The vector has WIDTH channels, padded to DIM. Its last PAIRS pairs are rotated.
    """
    even, odd = tl.split(tl.reshape(values, (DIM // 2, 2)))
    pair = tl.arange(0, DIM // 2) - (WIDTH // 2 - PAIRS)
    is_tail = (pair >= 0) & (pair < PAIRS)
    c = tl.load(cos + pair, mask=is_tail, other=1.0)
    s = tl.load(sin + pair, mask=is_tail, other=0.0)
    return even * c, odd * c, even * s, odd * s


@triton.jit
def _rotate_tail_kernel(
    x,
    cos,
    sin,
    weight,
    out,
    row_stride,
    head_stride,
    heads,
    eps,
    WIDTH: tl.constexpr,
    PAIRS: tl.constexpr,
    DIM: tl.constexpr,
    IS_NORMED: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    IS_BACK: tl.constexpr,
    PDL: tl.constexpr,
):
    program = tl.program_id(0)
    row = (program // heads).to(tl.int64)
    head = program % heads
    channel = tl.arange(0, DIM)
    inside = channel < WIDTH
    overlap.begin(PDL)
    source = x + row * row_stride + head * head_stride
    values = tl.load(source + channel, mask=inside, other=0.0).to(tl.float32)
    if IS_NORMED:
        values = values * tl.rsqrt(tl.sum(values * values) / WIDTH + eps)
    if HAS_WEIGHT:
        values = values * tl.load(weight + channel, mask=inside, other=0.0).to(tl.float32)
    angles = row * PAIRS
    even_cos, odd_cos, even_sin, odd_sin = rotated_tail(
        values, cos + angles, sin + angles, WIDTH, PAIRS, DIM
    )
    if IS_BACK:
        result = tl.join(even_cos + odd_sin, odd_cos - even_sin)
    else:
        result = tl.join(even_cos - odd_sin, odd_cos + even_sin)
    result = tl.reshape(result, (DIM,))
    at = out + program.to(tl.int64) * WIDTH + channel
    tl.store(at, result.to(out.dtype.element_ty), mask=inside)


def rotate_tail_triton(
    x: torch.Tensor,  # [n, heads, width], unit stride along width
    rotation: TailRotation,
    *,
    back: bool = False,
) -> torch.Tensor:  # as x, contiguous
    """The last channels of every vector rotated, or rotated back."""
    return _launch(x, rotation, rotation.sin, eps=0.0, is_normed=False, is_back=back)


def norm_and_rotate_triton(
    x: torch.Tensor,  # [n, heads, width], unit stride along width
    norm: VectorNorm,
    rotation: TailRotation,
) -> torch.Tensor:  # as x, contiguous
    """Every vector of unit root mean square, scaled by the weight, then rotated."""
    return _launch(x, rotation, norm.weight, eps=norm.eps, is_normed=True, is_back=False)


def _launch(
    x: torch.Tensor,
    rotation: TailRotation,
    weight: torch.Tensor,
    *,
    eps: float,
    is_normed: bool,
    is_back: bool,
) -> torch.Tensor:
    assert x.stride(2) == 1
    assert rotation.cos.is_contiguous()
    assert rotation.sin.is_contiguous()
    num_rows, heads, width = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    kernel: Any = _rotate_tail_kernel[(num_rows * heads,)]
    kernel(
        x,
        rotation.cos,
        rotation.sin,
        weight,
        out,
        x.stride(0),
        x.stride(1),
        heads,
        eps,
        WIDTH=width,
        PAIRS=rotation.cos.shape[1],
        DIM=triton.next_power_of_2(width),
        IS_NORMED=is_normed,
        HAS_WEIGHT=is_normed and weight.numel() > 0,
        IS_BACK=is_back,
        PDL=overlap.is_on(x),
        num_warps=2 if width <= 256 else 4,
        **overlap.options(x),
    )
    return out
