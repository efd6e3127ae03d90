"""The sampling kernels, interpreted, choose as the torch law does. tests/gpu compiles them."""

import random

import pytest
import torch
from support.laws import (
    EVERYTHING,
    TEMPERATURES,
    Choices,
    random_choices,
    random_logits,
    random_sampling,
    table_of,
)

from outrider.sampling.fused_sampler import _edit_, _penalised, choose_fused, floors_of
from outrider.sampling.logits_processing import _masses, edit_, filter_, penalise_
from outrider.step.shape import SamplingFlags
from outrider.wire.row_sampling import Ban, Filters, RowSampling

pytest.importorskip("triton")
from support.masses import masses_of

if torch.cuda.is_available():
    pytest.skip("compiled there; see tests/gpu", allow_module_level=True)

FLOATS = [torch.float32, torch.bfloat16]
SMALL = [1, 7, 1000, 3001]
ASKED = [
    Filters(top_k=1),
    Filters(top_k=50),
    Filters(top_k=5),
    Filters(top_p=0.9),
    Filters(top_p=0.95),
    Filters(top_k=50, top_p=0.9),
    Filters(top_p=0.999, min_p=0.05),
    Filters(top_k=700, top_p=0.8, min_p=0.001),
    Filters(min_p=0.2),
    Filters(top_p=1e-9),
]


def plain_choices(logits, samplings):
    n = len(samplings)
    return Choices(
        logits=logits,
        table=table_of(samplings, vocab=logits.shape[1]),
        rows=torch.arange(n) + 1,
        positions=torch.arange(n) * 17,
        path=torch.empty((n, 0), dtype=torch.int64),
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("vocab", SMALL)
def test_greedy_and_noisy_rows_choose_as_the_law_does(vocab, dtype):
    samplings = [RowSampling(seed=9 * t, temperature=x) for t, x in enumerate(TEMPERATURES)]
    choices = plain_choices(random_logits(1, len(samplings), vocab, dtype), samplings)
    for sampling_flags in (SamplingFlags(), SamplingFlags(noise=True)):
        assert torch.equal(
            choose_fused(*choices.arguments(sampling_flags)), choices.law(sampling_flags)
        )


@pytest.mark.parametrize("sampling_flags", [SamplingFlags(), SamplingFlags(noise=True)])
def test_infinities_and_nan_win_and_lose_as_in_torch(sampling_flags):
    logits = torch.zeros(6, 2050)
    logits[0] = -torch.inf
    logits[1, 7:] = -torch.inf
    logits[2, [1500, 2040]] = torch.inf
    logits[3, [1030, 2]] = torch.nan
    logits[3, 1] = torch.inf
    logits[4, :] = -torch.nan
    logits[5, :1800] = -0.0
    samplings = [RowSampling(seed=4, temperature=0.0 if row == 5 else 0.8) for row in range(6)]
    choices = plain_choices(logits, samplings)
    tokens = choose_fused(*choices.arguments(sampling_flags))
    assert torch.equal(tokens, choices.law(sampling_flags))
    assert tokens[[0, 2, 3, 4, 5]].tolist() == [0, 1500, 2, 0, 0]


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("part", ["penalties", "bias", "filters"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_each_warp_alone_chooses_as_the_law_does(part, dtype):
    rng = random.Random(5)
    samplings = [random_sampling(rng, 1000) for _ in range(6)]
    choices = random_choices(6, samplings, vocab=1000, dtype=dtype)
    sampling_flags = SamplingFlags(noise=True, **{part: True})
    expected = choices.law(sampling_flags)
    assert torch.equal(choose_fused(*choices.arguments(sampling_flags)), expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_penalties_and_edits_have_the_bits_of_the_law(dtype):
    rng = random.Random(2)
    samplings = [random_sampling(rng, 40) for _ in range(12)]
    given = random_choices(2, samplings, vocab=40, dtype=dtype)
    law = given.logits.float().clone()
    penalise_(law, given.table, given.rows, given.path)
    scores = _penalised(given.logits, given.table, given.rows, given.path)
    assert torch.equal(scores, law)
    edit_(law, given.table, given.rows, given.positions)
    _edit_(scores, given.table, given.rows, given.positions)
    assert torch.equal(scores, law)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("vocab", SMALL)
def test_all_warps_together_choose_as_the_law_does(vocab):
    rng = random.Random(vocab)
    samplings = [random_sampling(rng, vocab) for _ in range(5)]
    choices = random_choices(vocab, samplings, vocab=vocab, dtype=torch.bfloat16)
    assert torch.equal(choose_fused(*choices.arguments(EVERYTHING)), choices.law(EVERYTHING))


def assert_filters_keep_what_the_law_keeps(logits, samplings):
    choices = plain_choices(logits, samplings)
    floors = floors_of(logits, choices.table, choices.rows)
    law = logits.float().clone()
    filter_(law, choices.table, choices.rows)
    assert torch.equal(logits.float() >= floors[:, None], law > -torch.inf)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("vocab", SMALL)
def test_filters_keep_exactly_the_tokens_that_the_law_keeps(vocab, dtype):
    samplings = [
        RowSampling(seed=0, temperature=TEMPERATURES[row % 5], filters=filters)
        for row, filters in enumerate(ASKED)
    ]
    assert_filters_keep_what_the_law_keeps(
        random_logits(vocab, len(ASKED), vocab, dtype), samplings
    )


def test_top_k_of_every_size_keeps_what_the_law_keeps():
    logits = torch.linspace(0, -15, 13).expand(13, 13).contiguous()
    samplings = [RowSampling(seed=0, filters=Filters(top_k=k)) for k in range(1, 14)]
    assert_filters_keep_what_the_law_keeps(logits, samplings)


def test_masses_are_those_of_the_law():
    logits = random_logits(9, 8, 500)
    logits[:, ::50] = -torch.inf
    temperatures = torch.tensor([0.01, 0.3, 0.7, 1.0, 1.3, 1.7, 2.0, 10.0])
    best = logits.amax(1, keepdim=True)
    law = _masses(logits, best, temperatures[:, None])
    assert torch.equal(masses_of(logits, temperatures), law)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("dtype", FLOATS)
def test_more_candidates_than_there_is_room_for_are_searched_in_place(dtype):
    asked = [Filters(top_p=0.98), Filters(top_k=5000), Filters(top_k=5500, top_p=0.9)]
    samplings = [RowSampling(seed=0, temperature=1.0, filters=filters) for filters in asked]
    logits = random_logits(3, 3, 6001).div(20)
    assert_filters_keep_what_the_law_keeps(logits.to(dtype), samplings)


def test_a_value_that_fills_the_room_alone_is_kept_whole():
    logits = torch.zeros(2, 5000)
    logits[:, 4321] = 1.0
    asked = [Filters(top_k=2), Filters(top_p=0.5)]
    samplings = [RowSampling(seed=0, temperature=1.0, filters=filters) for filters in asked]
    assert_filters_keep_what_the_law_keeps(logits, samplings)


def test_a_row_chooses_in_any_batch_what_it_chooses_alone():
    rng = random.Random(8)
    samplings = [random_sampling(rng, 2500) for _ in range(3)]
    choices = random_choices(8, samplings, vocab=2500)
    together = choose_fused(*choices.arguments(EVERYTHING))
    for place in range(3):
        one = slice(place, place + 1)
        alone = Choices(
            logits=choices.logits[one],
            table=choices.table,
            rows=choices.rows[one],
            positions=choices.positions[one],
            path=choices.path[one],
        )
        assert torch.equal(choose_fused(*alone.arguments(EVERYTHING)), together[one])


def test_a_banned_token_that_is_also_biased_stays_banned():
    sampling = RowSampling(
        seed=0, temperature=0.0, bias=((3, 50.0),), ban=Ban(before=9, tokens=(3, 3))
    )
    choices = plain_choices(torch.zeros(2, 5), [sampling, sampling])
    tokens = choose_fused(*choices.arguments(SamplingFlags(bias=True)))
    assert tokens.tolist() == [0, 3]  # at positions 0 and 17
