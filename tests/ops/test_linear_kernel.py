"""The linear kernels, interpreted, compute what torch computes. tests/gpu compiles them."""

import pytest
import torch
import torch.nn.functional as F
from support.linear_cases import SHAPES, operands

pytest.importorskip("triton")
from outrider.ops.gpu_facts import HOPPER_SHARED
from outrider.ops.linear.add_residual_triton import add_residual
from outrider.ops.linear.linear_triton import (
    choose_linear_tile,
    fitted,
    linear,
    linear_plus,
    linear_swiglu,
)

SIZES = [(3072, 576), (576, 1536), (6144, 4096), (28672, 4096), (4096, 14336), (4096, 4096)]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_is_that_of_torch(shape):
    x, weight, _ = operands(*shape)
    torch.testing.assert_close(linear(x, weight), F.linear(x, weight))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_residual_is_added_to_the_product(shape):
    x, weight, residual = operands(*shape)
    torch.testing.assert_close(linear_plus(x, weight, residual), residual + F.linear(x, weight))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_gated_product_multiplies_the_activated_gate_with_the_other_half(shape):
    rows, outputs, inputs = shape
    x, weight, _ = operands(rows, 2 * outputs, inputs)
    gate, up = F.linear(x, weight).chunk(2, dim=-1)
    torch.testing.assert_close(linear_swiglu(x, weight), F.silu(gate) * up)


def test_rows_of_a_strided_input_are_found():
    x, weight, _ = operands(6, 32, 64)
    torch.testing.assert_close(linear(x[::2], weight), F.linear(x[::2], weight))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("num_rows", [1, 17, 33, 65, 129])
def test_the_stages_of_a_tile_fit_in_the_shared_memory_of_a_gpu(num_rows, size):
    tile = choose_linear_tile(num_rows, *size, 2)
    block = (tile.rows + tile.columns) * tile.depth * 2
    assert tile.stages * block <= HOPPER_SHARED
    assert fitted(tile, 2, HOPPER_SHARED) == tile
    for shared in (99 << 10, 163 << 10):  # where one of them is in registers
        stages = fitted(tile, 2, shared).stages
        assert 1 < stages <= tile.stages
        assert (stages - 1) * block <= shared


def test_a_product_in_float32_is_added_like_one_in_the_epilogue():
    x, weight, residual = operands(3, 40, 96)
    right = linear_plus(x, weight, residual)
    assert torch.equal(add_residual(linear(x, weight), residual), right)
