"""The rotation kernels, interpreted, do what the torch operations do. tests/gpu compiles them."""

import pytest
import torch

pytest.importorskip("triton")
from support.layer_kernels import check_angles, check_rotate_and_store

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TYPES = [torch.float32, torch.float16]  # the interpreter does not round to bfloat16


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("head_dim", [8, 80])
def test_angles_of_near_and_far_positions_are_those_of_torch(head_dim, dtype):
    check_angles([0, 1, 77, 4095, 131_071], head_dim, (DEVICE, dtype))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize("sizes", [(0, 3, 64), (1, 1, 8), (9, 3, 64), (5, 1, 80), (4, 2, 256)])
def test_queries_rotate_in_place_and_keys_and_values_reach_their_slots(sizes, has_norm, dtype):
    check_rotate_and_store(5, sizes, (DEVICE, dtype), has_norm=has_norm)
