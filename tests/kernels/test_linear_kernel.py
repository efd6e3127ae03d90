"""The linear kernels, interpreted, compute what torch computes. tests/gpu compiles them."""

import pytest
import torch
import torch.nn.functional as F
from support.linear_cases import SHAPES, operands

pytest.importorskip("triton")
from outrider.kernels.linear import linear, linear_plus, linear_swiglu


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
