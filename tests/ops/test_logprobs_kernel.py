"""Totals and ranks by the kernel, interpreted, are those of torch."""

import pytest
import torch

pytest.importorskip("triton")
from outrider.ops.sampling.logprobs_triton import total_and_rank_triton


@pytest.mark.parametrize("vocab", [1, 7, 4096, 5001])
def test_totals_and_ranks_are_those_of_torch(vocab):
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(5, vocab, generator=generator) * 4
    tokens = torch.randint(0, vocab, (5,), generator=generator)
    total, rank = total_and_rank_triton(logits, tokens)
    torch.testing.assert_close(total, logits.logsumexp(1))
    chosen = logits.gather(1, tokens[:, None])
    assert rank.tolist() == ((logits > chosen).sum(1) + 1).tolist()


def test_banned_tokens_weigh_nothing():
    logits = torch.tensor([[0.0, float("-inf"), 1.0]])
    total, rank = total_and_rank_triton(logits, torch.tensor([0]))
    torch.testing.assert_close(total, logits.logsumexp(1))
    assert rank.tolist() == [2]
