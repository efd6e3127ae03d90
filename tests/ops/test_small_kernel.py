"""Linear kernels with a fused norm, interpreted, do what the torch layers do."""

import pytest
import torch

pytest.importorskip("triton")
from support.small_cases import (
    NARROW,
    WIDE,
    check_gate,
    check_heads,
    check_norm_bits,
    check_plus,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TYPES = [torch.float32, torch.float16]  # the interpreter does not round to bfloat16
TILES = [NARROW, WIDE]
ROWS = [1, 2, 16, 17]


@pytest.mark.fast_cases(8)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("size", "depth"), [(24, 16), (37, 33), (8, 100), (20, 576)])
def test_a_gate_is_that_of_the_normalised_rows(rows, size, depth, tile, dtype):
    check_gate(rows, size, depth, (DEVICE, dtype), tile)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("size", "depth"), [(24, 16), (37, 35), (16, 192)])
def test_a_residual_is_added_to_the_product(rows, size, depth, tile, dtype):
    check_plus(rows, size, depth, (DEVICE, dtype), tile)


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("tile", [NARROW, WIDE])
@pytest.mark.parametrize("rows", [1, 5, 17])
@pytest.mark.parametrize("sizes", [(1, 1, 8, 33), (3, 1, 64, 96), (2, 2, 80, 64), (4, 2, 16, 16)])
def test_heads_rotate_and_keys_and_values_reach_their_slots(rows, sizes, tile, dtype):
    check_heads(rows, sizes, (DEVICE, dtype), tile)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize("rows", [1, 3])
def test_heads_have_their_bias_before_they_rotate(rows, has_norm, dtype):
    sizes = (2, 1, 24, 80)
    check_heads(rows, sizes, (DEVICE, dtype), WIDE, has_norm=has_norm, has_bias=True)


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("head_dim", [6, 14, 64, 86])  # 18, 42, 192 and 258 inputs
def test_rows_are_normalised_to_the_bits_of_the_norm_kernel(rows, head_dim, dtype):
    check_norm_bits(rows, head_dim, (DEVICE, dtype), NARROW)
