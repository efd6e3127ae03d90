"""What linear kernels with a fused norm must do on any device: interpreted, and compiled."""

import torch
import torch.nn.functional as F

from outrider.ops.attention.write_kv import write_kv
from outrider.ops.linear.qkv_projection_triton import qkv_projection_triton
from outrider.ops.linear.small_linear_triton import SmallTile, normed_swiglu_triton, small_plus
from outrider.ops.norm_rope.rms_norm import Norm, RmsNorm, rms_norm_reference
from outrider.ops.norm_rope.rms_norm_triton import rms_norm_triton
from outrider.ops.norm_rope.rotary import Rotation, rotate_
from support.layer_kernels import EPS, PAGE_SIZE, Case, assert_close, poisoned_outputs, random

NARROW = SmallTile(columns=16, num_warps=4)
WIDE = SmallTile(columns=32, num_warps=8)
ABSENT = 0  # length of a weight that is not there


def rounded_norm(x: torch.Tensor, norm: Norm) -> torch.Tensor:
    """In float32, but rounded where the kernels round."""
    if not len(norm.weight):
        return x.float()
    ones = torch.ones_like(norm.weight, dtype=torch.float32)
    unit = rms_norm_reference(x.float(), ones, norm.eps)
    return (unit.to(x.dtype).float() * norm.weight.float()).to(x.dtype).float()


def check_gate(rows: int, size: int, depth: int, like: Case, tile: SmallTile) -> None:
    """[n, depth] -> [n, size]"""
    x, scales = random(rows, depth, like=like, seed=1), random(depth, like=like, seed=2)
    weight = random(2 * size, depth, like=like, seed=3) * depth**-0.5
    with poisoned_outputs():
        got = normed_swiglu_triton(x, RmsNorm(scales, EPS), weight, tile=tile)
    gate, up = F.linear(rounded_norm(x, RmsNorm(scales, EPS)), weight.float()).chunk(2, dim=-1)
    # A norm that rounds the other way changes one of `depth` terms by one part in 2^8.
    assert_close(got, F.silu(gate) * up, roundings=2, cancelled=8.0)


def check_plus(rows: int, size: int, depth: int, like: Case, tile: SmallTile) -> None:
    x, residual = random(rows, depth, like=like, seed=1), random(rows, size, like=like, seed=2)
    weight = random(size, depth, like=like, seed=3) * depth**-0.5
    with poisoned_outputs():
        got = small_plus(x, weight, residual, tile=tile)
    assert_close(got, residual.float() + F.linear(x.float(), weight.float()), roundings=1)


def check_heads(
    rows: int,
    sizes: tuple[int, int, int, int],  # heads, kv_heads, head_dim, depth
    like: Case,
    tile: SmallTile,
    *,
    has_norm: bool = True,
    has_bias: bool = False,
) -> None:
    heads, kv_heads, head_dim, depth = sizes
    size = (heads + 2 * kv_heads) * head_dim
    x, weight = random(rows, depth, like=like, seed=1), random(size, depth, like=like, seed=3)
    weight *= depth**-0.5
    norm = RmsNorm(random(depth if has_norm else ABSENT, like=like, seed=2), EPS)
    bias = random(size if has_bias else ABSENT, like=like, seed=4)
    layer, slots = _pool(rows, kv_heads, head_dim, like)
    rotation = _rotation(rows, head_dim, like)
    right = F.linear(rounded_norm(x, norm), weight.float())
    right = (right + bias.float() if has_bias else right).view(rows, -1, head_dim)
    rotate_(right[:, : heads + kv_heads], Rotation(rotation.cos.float(), rotation.sin.float()))
    right_layer = layer.float()
    write_kv(right_layer, slots, right[:, heads:])
    with poisoned_outputs():
        queries = qkv_projection_triton(x, norm, weight, bias, rotation, layer, slots, tile=tile)
    close = {"roundings": 4, "cancelled": 16.0}
    assert_close(queries, right[:, :heads], **close)
    assert_close(layer, right_layer, **close)


def check_norm_bits(rows: int, head_dim: int, like: Case, tile: SmallTile) -> None:
    """An identity projection of three heads, not rotated, shows the norm itself."""
    depth = 3 * head_dim
    x, scales = 50 * random(rows, depth, like=like, seed=1), random(depth, like=like, seed=2)
    layer, slots = _pool(rows, 1, head_dim, like)
    ones, zeros = torch.ones(rows, 1, head_dim).to(*like), torch.zeros(rows, 1, head_dim).to(*like)
    eye = torch.eye(depth).to(*like)
    none = scales[:ABSENT]
    norm, rotation = RmsNorm(scales, EPS), Rotation(ones, zeros)
    queries = qkv_projection_triton(x, norm, eye, none, rotation, layer, slots, tile=tile)
    stored = layer.flatten(0, 1)[slots]
    got = torch.cat([queries, stored], dim=1).flatten(1)
    assert torch.equal(got, rms_norm_triton(x, scales, EPS))


def _pool(rows: int, kv_heads: int, head_dim: int, like: Case) -> tuple[torch.Tensor, torch.Tensor]:
    num_pages = rows // PAGE_SIZE + 2
    layer = random(num_pages, PAGE_SIZE, 2 * kv_heads, head_dim, like=like, seed=5)
    order = torch.randperm(num_pages * PAGE_SIZE, generator=torch.Generator().manual_seed(6))
    return layer, order[:rows].to(like[0])


def _rotation(rows: int, head_dim: int, like: Case) -> Rotation:
    angles = random(rows, 1, head_dim // 2, like=(like[0], torch.float32), seed=7)
    cos, sin = angles.cos().repeat(1, 1, 2), torch.cat([-angles.sin(), angles.sin()], -1)
    return Rotation(cos.to(*like).contiguous(), sin.to(*like).contiguous())
