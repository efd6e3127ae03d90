"""The norm kernels, interpreted, do what the torch norms do. tests/gpu compiles them."""

import pytest
import torch

pytest.importorskip("triton")
from support.layer_kernels import check_joined_norms, check_norm, check_square_sums

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TYPES = [torch.float32, torch.float16]  # the interpreter does not round to bfloat16


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 576), (2, 4097)])
def test_rows_are_normalised_one_by_one(shape, dtype):
    check_norm(shape, (DEVICE, dtype))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 576), (2, 4097)])
def test_squares_are_added_up_row_by_row(shape, dtype):
    check_square_sums(shape, (DEVICE, dtype))


@pytest.mark.parametrize("dtype", TYPES)
def test_groups_of_a_row_have_their_own_weights(dtype):
    check_norm((4, 3, 80), (DEVICE, dtype))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("num_rows", "dim"), [(1, 32), (5, 53)])
def test_embeddings_and_states_are_normalised_side_by_side(num_rows, dim, dtype):
    check_joined_norms(num_rows, dim, (DEVICE, dtype))
