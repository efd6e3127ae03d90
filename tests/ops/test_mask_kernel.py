"""The kernel of masks, interpreted, against the torch reference. tests/gpu compiles it."""

import pytest
import torch

from outrider.ops.sampling.grammar_mask import mask_tokens_

pytest.importorskip("triton")
from outrider.ops.sampling.grammar_mask_triton import mask_tokens_triton_

if torch.cuda.is_available():
    pytest.skip("compiled there; see tests/gpu", allow_module_level=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "vocab"), [(1, 1), (3, 67), (2, 4096), (5, 9001)])
def test_the_kernel_masks_as_the_reference(dtype, rows, vocab):
    torch.manual_seed(rows)
    logits = torch.randn(rows, vocab).to(dtype)
    bits = torch.randint(-(2**31), 2**31, (rows, -(-vocab // 32)), dtype=torch.int64).int()
    bits[0] = -1
    expected = logits.clone()
    mask_tokens_(expected, bits)
    mask_tokens_triton_(logits, bits)
    assert torch.equal(logits, expected)


def test_no_rows_are_no_work():
    mask_tokens_triton_(torch.zeros(0, 67), torch.zeros(0, 3, dtype=torch.int32))
