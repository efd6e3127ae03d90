"""A mask rules tokens out and changes nothing else."""

import math

import pytest
import torch

from outrider.ops.sampling.grammar_mask import mask_tokens_


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 67])
def test_only_tokens_whose_bit_is_missing_are_ruled_out(vocab):
    torch.manual_seed(3)
    logits = torch.randn(5, vocab)
    bits = torch.randint(-(2**31), 2**31, (5, -(-vocab // 32)), dtype=torch.int64).int()
    masked = logits.clone()
    mask_tokens_(masked, bits)
    for row in range(5):
        for token in range(vocab):
            is_allowed = bits[row, token // 32].item() >> token % 32 & 1
            expected = logits[row, token].item() if is_allowed else -math.inf
            assert masked[row, token].item() == expected


def test_all_bits_set_change_no_bit():
    logits = torch.randn(3, 100)
    masked = logits.clone()
    mask_tokens_(masked, torch.full((3, 4), -1, dtype=torch.int32))
    assert torch.equal(masked, logits)
