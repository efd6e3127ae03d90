"""A drafter guesses with the noise that the target will choose with."""

import torch
from support.sampling_cases import TEMPERATURES, random_logits, table_of

from outrider.sampling.draft_topk import likely_samples, likely_tokens
from outrider.sampling.sampler import sample_tokens
from outrider.step.shape import SamplingFlags
from outrider.wire.row_sampling import RowSampling

VOCAB = 301


def test_a_drafter_with_the_logits_of_the_target_guesses_its_token():
    samplings = [RowSampling(seed=5 * t, temperature=x) for t, x in enumerate(TEMPERATURES)]
    table, rows = table_of(samplings, vocab=VOCAB), torch.arange(5) + 1
    logits = random_logits(1, 5, VOCAB)
    logits[3] += (
        torch.arange(VOCAB) / 1000
    )  # this row has ties, which two forms may break differently
    likely = likely_samples(
        logits, torch.arange(VOCAB), 3, table=table, rows=rows, positions=rows * 7
    )
    path = rows.new_empty((5, 0))
    chosen = sample_tokens(logits.clone(), table, rows, rows * 7, path, SamplingFlags(noise=True))
    assert torch.equal(likely.tokens[:, 0], chosen.tokens)


def test_tokens_are_ids_of_the_target_with_their_log_probabilities():
    shares = torch.tensor([[0.1, 0.6, 0.3]])
    likely = likely_tokens(shares.log() + 2.0, torch.tensor([4, 8, 9]), 2)
    assert likely.tokens.tolist() == [[8, 9]]
    torch.testing.assert_close(likely.logprobs.exp(), torch.tensor([[0.6, 0.3]]))


def test_a_single_guess_among_equals_is_the_first():
    logits = torch.zeros(1, 4000)
    logits[0, [3000, 17, 900]] = 1.0
    assert likely_tokens(logits, torch.arange(4000), 1).tokens.tolist() == [[17]]
