"""Linear kernels with a fused norm, compiled: near torch, with the bits of separate kernels."""

import pytest
import torch

pytest.importorskip("triton")
from support.layer_kernels import EPS, random
from support.small_cases import (
    NARROW,
    WIDE,
    check_gate,
    check_heads,
    check_norm_bits,
    check_plus,
)

from outrider.ops.linear.linear_triton import linear, linear_plus, linear_swiglu
from outrider.ops.linear.qkv_projection_triton import qkv_projection_triton
from outrider.ops.linear.small_linear_triton import normed_swiglu_triton, small_plus
from outrider.ops.norm_rope.head_norm import NoHeadNorm
from outrider.ops.norm_rope.rms_norm import RmsNorm
from outrider.ops.norm_rope.rms_norm_triton import rms_norm_triton
from outrider.ops.norm_rope.rotary import Rotation
from outrider.ops.norm_rope.rotary_triton import rotate_and_store_triton

BF16 = ("cuda", torch.bfloat16)
TYPES = [torch.bfloat16, torch.float16]
TILES = [NARROW, WIDE]
ROWS = [1, 2, 16, 17, 64]
DEPTHS = [16, 100, 576, 896, 960, 1024]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("depth", DEPTHS)
def test_a_gate_is_that_of_the_normalised_rows(rows, depth, tile, dtype):
    check_gate(rows, 1537, depth, ("cuda", dtype), tile)


@pytest.mark.parametrize("tile", [NARROW, WIDE])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("size", "depth"), [(576, 576), (576, 1536), (37, 35)])
def test_a_residual_is_added_to_the_product(rows, size, depth, tile):
    check_plus(rows, size, depth, BF16, tile)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("sizes", [(9, 3, 64, 576), (14, 2, 64, 896), (5, 5, 80, 100)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_heads_rotate_and_keys_and_values_reach_their_slots(rows, sizes, tile, has_bias):
    check_heads(rows, sizes, BF16, tile, has_bias=has_bias)


@pytest.mark.parametrize("rows", ROWS)
def test_rows_that_are_normalised_already_are_left_alone(rows):
    check_heads(rows, (9, 3, 64, 1152), BF16, WIDE, has_norm=False)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("head_dim", [6, 64, 192, 298])
def test_rows_are_normalised_to_the_bits_of_the_norm_kernel(rows, head_dim, tile):
    check_norm_bits(rows, head_dim, BF16, tile)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("depth", DEPTHS)
def test_the_bits_are_those_of_kernels_one_after_the_other(rows, depth, tile):
    """Deterministic arithmetic uses both: fused kernels for few rows, separate ones for many."""
    x, scales = 3 * random(rows, depth, like=BF16, seed=1), random(depth, like=BF16, seed=2)
    gate = random(3072, depth, like=BF16, seed=3) * depth**-0.5
    normed = rms_norm_triton(x, scales, EPS)
    fused = normed_swiglu_triton(x, RmsNorm(scales, EPS), gate, tile=tile)
    assert torch.equal(fused, linear_swiglu(normed, gate))

    qkv, bias = random(960, depth, like=BF16, seed=4), random(960, like=BF16, seed=5)
    layer, slots = random(20, 4, 6, 64, like=BF16, seed=6), torch.arange(rows, device="cuda") + 4
    rotation = Rotation(
        random(rows, 1, 64, like=BF16, seed=7), random(rows, 1, 64, like=BF16, seed=8)
    )
    other = layer.clone()
    queries = qkv_projection_triton(
        x, RmsNorm(scales, EPS), qkv, bias, rotation, layer, slots, tile=tile
    )
    heads = linear(normed, qkv).add_(bias).view(rows, 15, 64)
    rotate_and_store_triton(heads, rotation, NoHeadNorm(), other, slots)
    assert torch.equal(queries, heads[:, :9])
    assert torch.equal(layer, other)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("depth", [576, 1152, 1536])
def test_a_sum_with_the_residual_has_the_bits_of_the_linear_kernel(rows, depth):
    x, residual = random(rows, depth, like=BF16, seed=1), random(rows, 576, like=BF16, seed=2)
    weight = random(576, depth, like=BF16, seed=3) * depth**-0.5
    got = small_plus(x, weight, residual)
    assert torch.equal(got, linear_plus(x, weight, residual))


def test_a_captured_chain_repeats_the_bits_of_the_launched_one():
    """Each kernel reads what the one before wrote, and has begun before that one ended."""
    weights = [random(2 * 576, 576, like=BF16, seed=i) * 576**-0.5 for i in range(12)]
    scales, x = random(576, like=BF16, seed=20), random(3, 576, like=BF16, seed=21)

    def chain() -> torch.Tensor:
        stream = x
        for weight in weights * 4:
            y = normed_swiglu_triton(stream, RmsNorm(scales, EPS), weight)
            stream = small_plus(y, weight[:576], stream)
        return stream

    for _ in range(3):
        launched = chain().clone()
    apart = x
    for weight in weights * 4:
        y = linear_swiglu(rms_norm_triton(apart, scales, EPS), weight)
        apart = linear_plus(y, weight[:576], apart)
    assert torch.equal(launched, apart)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = chain()
    captured.fill_(torch.nan)
    for _ in range(10):
        graph.replay()
        assert torch.equal(captured, launched)
