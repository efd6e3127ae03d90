"""Queries, keys and values of a small model in one kernel: norm, projection, bias, rotation and the
write of keys and values. The bits are those of the separate kernels.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops.attention.storable_kv_triton import is_finite, storable
from outrider.ops.linear.small_linear_triton import (
    CHOSEN,
    SmallTile,
    halves,
    load_rows,
    load_weights,
    normed,
    options_of,
    product,
)
from outrider.ops.norm_rope.rms_norm import Norm
from outrider.ops.norm_rope.rotary import Rotation


@triton.jit
def _plus_bias(values, bias, at, inside, HAS_BIAS: tl.constexpr, TYPE: tl.constexpr):
    """Values rounded where separate kernels would store them, then float32 again."""
    values = values.to(TYPE).to(tl.float32)
    if HAS_BIAS:
        values += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)[None, :]
        values = values.to(TYPE).to(tl.float32)
    return values


@triton.jit(
    do_not_specialize=["num_rows"],
    do_not_specialize_on_alignment=["slots"],  # any view of a plan
)
def _heads_kernel(
    x,
    weight,  # [num_heads * 2 * HALF, K] queries, keys, values
    scales,
    bias,  # [num_heads * 2 * HALF]
    cos,  # [num_rows, 2 * HALF]
    sin,  # [num_rows, 2 * HALF]
    slots,  # [num_rows]
    queries,  # [num_rows, num_queries, 2 * HALF]
    layer,
    num_rows,
    K,
    x_stride,
    slot_stride,
    num_queries,
    num_rotated,
    eps,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    IS_SINGLE: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HALF: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """Some pairs of one head: first channels of all pairs on the left, second ones on the right."""
    PART: tl.constexpr = COLUMNS // 2
    PARTS: tl.constexpr = (HALF + PART - 1) // PART
    TYPE: tl.constexpr = queries.dtype.element_ty
    head, part = tl.program_id(0) // PARTS, tl.program_id(0) % PARTS
    channel = tl.arange(0, COLUMNS)
    of_channel = part * PART + channel % PART
    source = head * 2 * HALF + channel // PART * HALF + of_channel
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    pair = part * PART + tl.arange(0, PART)
    is_row, is_pair = row < num_rows, pair < HALF
    inside = is_row[:, None] & is_pair[None, :]
    angle = row[:, None].to(tl.int64) * (2 * HALF) + pair[None, :]
    is_rotated, is_query = head < num_rotated, head < num_queries
    w_left, w_right, scales_left, scales_right = load_weights(
        weight, source, of_channel < HALF, scales, K, LEFT, RIGHT, HAS_NORM, PDL
    )
    a_left, a_right = load_rows(x, row, num_rows, K, x_stride, IS_SINGLE, LEFT, RIGHT)
    slot = tl.load(slots + row, mask=is_row, other=0).to(tl.int64)
    c = tl.load(cos + angle, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sin + angle + HALF, mask=inside, other=0.0).to(tl.float32)
    if HAS_NORM:
        a_left, a_right = normed(a_left, a_right, scales_left, scales_right, K, eps, RIGHT)
    total = product(a_left, a_right, w_left, w_right, ROWS, RIGHT, PRECISION)

    column = head * 2 * HALF + pair
    low, high = halves(total, ROWS, PART)
    low = _plus_bias(low, bias, column, is_pair, HAS_BIAS, TYPE)
    high = _plus_bias(high, bias, column + HALF, is_pair, HAS_BIAS, TYPE)
    new_low = tl.where(is_rotated, low * c - high * s, low).to(TYPE)
    new_high = tl.where(is_rotated, high * c + low * s, high).to(TYPE)

    own = queries + row[:, None].to(tl.int64) * (num_queries * 2 * HALF) + column[None, :]
    tl.store(own, new_low, mask=inside & is_query)
    tl.store(own + HALF, new_high, mask=inside & is_query)
    stored = layer + slot[:, None] * slot_stride + (column - num_queries * 2 * HALF)[None, :]
    # Other programs compute the keys of these values, so the row of x is marked, which is the
    # residual: from here on the hidden state of the token is NaN, and its keys in later layers.
    is_bad = ~(is_finite(new_low) & is_finite(new_high)) & inside & ~is_rotated
    marked = x + row[:, None].to(tl.int64) * x_stride + tl.zeros([ROWS, PART], dtype=tl.int64)
    tl.store(marked, tl.full([ROWS, PART], float("nan"), x.dtype.element_ty), mask=is_bad)
    new_low, new_high = storable(new_low, is_rotated), storable(new_high, is_rotated)
    tl.store(stored, new_low, mask=inside & (head >= num_queries))
    tl.store(stored + HALF, new_high, mask=inside & (head >= num_queries))


def qkv_projection_triton(
    x: torch.Tensor,  # [num_query, in] the residual
    norm: Norm,  # weight [in], or [0] for rows as they are
    weight: torch.Tensor,  # [(heads + 2 * kv_heads) * head_dim, in] queries, keys, values
    bias: torch.Tensor,  # [(heads + 2 * kv_heads) * head_dim], or [0] for none
    rotation: Rotation,
    layer: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim]
    slots: torch.Tensor,  # [num_query] int64
    *,
    tile: SmallTile = CHOSEN,
) -> torch.Tensor:  # [num_query, heads, head_dim]
    """The rotated queries of normalised rows; rotated keys, and values, are written to slots.

    Rows whose values are not finite become NaN.
    """
    (num_rows, depth), (num_kv, head_dim) = x.shape, layer.shape[2:]
    num_heads = weight.shape[0] // head_dim
    assert rotation.cos.is_contiguous()
    assert rotation.sin.is_contiguous()
    assert layer.is_contiguous()
    num_queries, half, part = num_heads - num_kv, head_dim // 2, tile.columns // 2
    queries = torch.empty((num_rows, num_queries, head_dim), dtype=x.dtype, device=x.device)
    grid = (num_heads * triton.cdiv(half, part), triton.cdiv(num_rows, tile.rows))
    kernel: Any = _heads_kernel[grid]
    kernel(
        x,
        weight,
        norm.weight,
        bias,
        rotation.cos,
        rotation.sin,
        slots,
        queries,
        layer,
        num_rows,
        depth,
        x.stride(0),
        layer.stride(1),
        num_queries,
        num_heads - num_kv // 2,
        norm.eps,
        HAS_NORM=len(norm.weight) > 0,
        HAS_BIAS=len(bias) > 0,
        HALF=half,
        **options_of(x, tile),
    )
    return queries
