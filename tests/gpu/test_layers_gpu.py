"""The compiled kernels of layers do what the torch operations do, at the sizes of real models."""

import pytest
import torch

pytest.importorskip("triton")
from support.layer_kernels import (
    EPS,
    check_angles,
    check_joined_norms,
    check_norm,
    check_rotate_and_store,
    check_square_sums,
    check_swiglu,
    random,
)

from outrider.models.layers.rotary_embedding import RotaryEmbedding
from outrider.models.rope_config import RopeConfig
from outrider.models.rope_scaling import YarnScaling
from outrider.ops.linear.swiglu import swiglu
from outrider.ops.linear.swiglu_triton import swiglu_triton
from outrider.ops.norm_rope.head_norm import NoHeadNorm, NormEachHead
from outrider.ops.norm_rope.rms_norm import make_norm
from outrider.ops.norm_rope.rms_norm_triton import rms_norm_triton
from outrider.ops.norm_rope.rotary import Rotation, rotate_and_store
from outrider.ops.norm_rope.rotary_triton import rotate_and_store_triton

TYPES = [torch.float32, torch.bfloat16, torch.float16]
BF16 = ("cuda", torch.bfloat16)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "shape", [(1, 576), (70, 576), (1, 4096), (8192, 4096), (3, 16384), (33, 3, 4096), (5, 4097)]
)
def test_rows_are_normalised_one_by_one(shape, dtype):
    check_norm(shape, ("cuda", dtype))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(1, 640), (70, 2560), (1027, 5120), (3, 16384)])
def test_squares_are_added_up_row_by_row(shape, dtype):
    check_square_sums(shape, ("cuda", dtype))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("num_rows", "dim"), [(1, 4096), (600, 2048), (7, 577)])
def test_embeddings_and_states_are_normalised_side_by_side(num_rows, dim, dtype):
    check_joined_norms(num_rows, dim, ("cuda", dtype))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_angles_of_near_and_far_positions_are_those_of_torch(head_dim, dtype):
    check_angles([0, 1, 2, *range(100, 131_072, 997), 131_071], head_dim, ("cuda", dtype))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize(
    "sizes", [(32, 8, 128), (9, 3, 64), (7, 1, 80), (5, 5, 96), (16, 8, 128), (4, 2, 256)]
)
@pytest.mark.parametrize("num_query", [3, 1027])
def test_queries_rotate_in_place_and_keys_and_values_reach_their_slots(
    num_query, sizes, has_norm, dtype
):
    check_rotate_and_store(num_query, sizes, ("cuda", dtype), has_norm=has_norm)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("num_rows", "width"), [(1, 14336), (1025, 14336), (40, 1536), (3, 1537)])
def test_the_second_half_of_a_row_is_gated_by_the_first(num_rows, width, dtype):
    check_swiglu(num_rows, width, ("cuda", dtype))


@pytest.mark.parametrize("has_norm", [False, True])
def test_layers_on_a_gpu_do_what_they_do_on_a_cpu(has_norm):
    """Float32, at far positions with a scaled rotation, against the references on the CPU."""
    results = [_layers(torch.device(kind), has_norm=has_norm) for kind in ("cpu", "cuda")]
    for on_cpu, on_gpu in zip(*results, strict=True):
        torch.testing.assert_close(on_gpu.cpu(), on_cpu, rtol=1e-5, atol=1e-5)


def _layers(device: torch.device, *, has_norm: bool) -> list[torch.Tensor]:
    like = (device.type, torch.float32)
    scaling = YarnScaling(
        factor=4.0, attention_factor=1.14, original_context=8192, beta_fast=32.0, beta_slow=1.0
    )
    rotary = RotaryEmbedding(
        RopeConfig(theta=1e6, scaling=scaling), head_dim=128, dtype=like[1], device=device
    )
    positions = torch.arange(11, device=device) * 11_003
    slots = torch.arange(11, device=device) + 2
    heads = random(11, 10, 128, like=like, seed=1)
    layer = random(4, 4, 4, 128, like=like, seed=2)
    weight = random(8, 128, like=like, seed=3)
    norm = NormEachHead(make_norm(weight, EPS)) if has_norm else NoHeadNorm()
    rotation = rotary.at(positions)
    rotate_and_store(heads, rotation, norm, layer, slots)
    x = random(11, 576, like=like, seed=4)
    normed = make_norm(random(576, like=like, seed=5), EPS)(x)
    return [rotation.cos, rotation.sin, heads[:, :6], layer, normed, swiglu(x)]


def test_a_captured_chain_of_kernels_repeats_the_bits_of_the_launched_one():
    x = random(5, 512, like=BF16, seed=1)
    weight = random(512, like=BF16, seed=2)
    angle = Rotation(random(5, 1, 64, like=BF16, seed=3), random(5, 1, 64, like=BF16, seed=4))
    layer = random(4, 4, 2, 64, like=BF16, seed=5)
    slots = torch.arange(5, device="cuda")

    def chain() -> torch.Tensor:
        heads = rms_norm_triton(x, weight, EPS)
        for _ in range(20):  # each reads what the one before wrote, while it is still running
            view = heads.view(5, 8, 64)
            rotate_and_store_triton(view, angle, NoHeadNorm(), layer, slots)
            heads = rms_norm_triton(
                torch.cat([swiglu_triton(heads), heads[:, :256]], -1), weight, EPS
            )
        return heads

    for _ in range(3):
        launched = chain().clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = chain()
    captured.fill_(torch.nan)
    for _ in range(10):
        graph.replay()
        assert torch.equal(captured, launched)
