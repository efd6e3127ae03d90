"""The SwiGLU kernel, interpreted, does what the torch operations do. tests/gpu compiles it."""

import pytest
import torch

pytest.importorskip("triton")
from support.layer_kernels import check_swiglu

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TYPES = [torch.float32, torch.float16]  # the interpreter does not round to bfloat16


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("num_rows", "width"), [(1, 1), (3, 48), (2, 1537)])
def test_the_second_half_of_a_row_is_gated_by_the_first(num_rows, width, dtype):
    check_swiglu(num_rows, width, (DEVICE, dtype))
