"""Keys and values that are not finite, as interpreted kernels store them. tests/gpu compiles."""

import pytest
import torch

pytest.importorskip("triton")
from support import bad_kv_cases

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LIKE = [torch.empty(0, dtype=dtype, device=DEVICE) for dtype in (torch.float32, torch.float16)]


@pytest.mark.parametrize("like", LIKE, ids=["float32", "float16"])
def test_a_bad_key_is_stored_as_nan_and_a_bad_value_as_zero_with_its_key_as_nan(like):
    bad_kv_cases.check_heads(like)


def test_a_bad_hidden_state_has_keys_of_nan_and_values_of_zero():
    bad_kv_cases.check_projection(LIKE[0])


@pytest.mark.parametrize("like", LIKE, ids=["float32", "float16"])
def test_the_fused_kernel_marks_the_hidden_state_of_a_bad_value(like):
    bad_kv_cases.check_bad_values(like)


@pytest.mark.parametrize("like", LIKE, ids=["float32", "float16"])
def test_a_bad_latent_is_stored_as_zeros_beside_a_key_of_nan(like):
    bad_kv_cases.check_latents(like)
