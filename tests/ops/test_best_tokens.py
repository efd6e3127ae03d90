"""The best tokens of draft logits: the compiled search against plain torch."""

import math
import random

import pytest
import torch
from support.torch_threads import torch_threads

from outrider.ops.sampling.sampling_columns import NoNoise
from outrider.ops.sampling.top_tokens import top_tokens_reference
from outrider.ops.sampling.top_tokens_compiled import best_tokens_compiled

IDS = torch.arange(5, 5 + 3 * 5000, 3)
NONE = NoNoise(unread=IDS)


@pytest.mark.parametrize("seed", range(20))
def test_tokens_and_probabilities_are_those_of_the_reference(seed):
    rng = random.Random(seed)
    rows, width, topk = (
        rng.choice([0, 1, 3, 40]),
        rng.choice([7, 128, 129, 5000]),
        rng.randint(1, 7),
    )
    wide = torch.randn(rows, width + 3) * rng.choice([0.1, 3.0, 40.0])
    logits, ids = wide[:, 1 : width + 1], IDS[:width]  # rows need not be dense
    right = top_tokens_reference(logits, ids, topk, NONE)
    with torch_threads(rng.choice([1, 2, 3])):
        ours = best_tokens_compiled(logits, ids, topk)
    assert torch.equal(ours.tokens, right.tokens)
    torch.testing.assert_close(ours.logprobs, right.logprobs, rtol=1e-5, atol=1e-5)


def test_of_equal_logits_the_first_tokens_are_the_best():
    ours = best_tokens_compiled(torch.zeros(2, 300), IDS[:300], 3)
    assert ours.tokens.tolist() == [IDS[:3].tolist()] * 2


def test_tokens_that_are_ruled_out_change_no_probability_of_others():
    logits = torch.randn(2, 300)
    logits[:, 1::2] = -math.inf
    logits[1, 2:] = -math.inf  # one token is left, and of the others the first
    right = top_tokens_reference(logits, IDS[:300], 2, NONE)
    ours = best_tokens_compiled(logits, IDS[:300], 2)
    torch.testing.assert_close(ours.logprobs, right.logprobs, rtol=1e-5, atol=1e-5)
    assert torch.equal(ours.tokens[0], right.tokens[0])
    assert sorted(ours.tokens[1].tolist()) == IDS[:2].tolist()


@pytest.mark.parametrize("bad", [math.nan, -math.inf, math.inf])
def test_tokens_of_rows_that_are_not_finite_are_ids_and_other_rows_are_right(bad):
    logits = torch.randn(3, 200)
    right = top_tokens_reference(logits, IDS[:200], 2, NONE)
    logits[1] = bad
    ours = best_tokens_compiled(logits, IDS[:200], 2)
    assert torch.equal(ours.tokens[[0, 2]], right.tokens[[0, 2]])
    assert torch.isin(ours.tokens[1], IDS[:200]).all()
    assert ours.logprobs[1].isnan().all()
