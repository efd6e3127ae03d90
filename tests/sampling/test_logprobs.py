"""Log-probabilities are those of the logits as the model gave them."""

import torch
from support.torch_threads import torch_threads

from outrider.ops.sampling.logprobs import logprobs_of, total_and_rank_reference


def named(rows):
    """No further tokens."""
    return torch.empty((rows, 0), dtype=torch.int64)


def test_logprobs_and_ranks_are_those_of_the_softmax():
    shares = torch.tensor([[0.1, 0.6, 0.25, 0.05], [0.4, 0.3, 0.2, 0.1]])
    reported = logprobs_of(
        shares.log() + 3.0, torch.tensor([0, 0]), torch.tensor([[3], [2]]), top=2
    )
    torch.testing.assert_close(reported.chosen.exp(), torch.tensor([0.1, 0.4]))
    assert reported.rank.tolist() == [3, 1]
    assert reported.top_ids.tolist() == [[1, 2], [0, 1]]
    torch.testing.assert_close(reported.top_values.exp(), torch.tensor([[0.6, 0.25], [0.4, 0.3]]))
    torch.testing.assert_close(reported.named_values.exp(), torch.tensor([[0.05], [0.2]]))


def test_no_top_tokens_may_be_asked():
    reported = logprobs_of(torch.randn(3, 5), torch.tensor([0, 1, 2]), named(3), top=0)
    assert reported.top_ids.shape == reported.top_values.shape == (3, 0)


def test_equally_likely_tokens_share_a_rank():
    reported = logprobs_of(torch.zeros(1, 4), torch.tensor([3]), named(1), top=1)
    assert reported.rank.tolist() == [1]


def test_logprobs_of_nothing_are_empty():
    nothing = logprobs_of(torch.empty(0, 5), torch.empty(0, dtype=torch.int64), named(0), top=0)
    assert nothing.chosen.shape == (0,)


def test_the_total_of_a_row_has_the_same_bits_alone_and_beside_others():
    logits = 4 * torch.randn(60, 49152, generator=torch.Generator().manual_seed(0))
    tokens = torch.zeros(60, dtype=torch.int64)
    with torch_threads(2):
        together = total_and_rank_reference(logits, tokens)[0]
        alone = [total_and_rank_reference(logits[i : i + 1], tokens[:1])[0] for i in range(60)]
    assert torch.equal(torch.cat(alone), together)
