"""The sampling kernels, interpreted, choose as the torch reference. tests/gpu compiles them."""

import random

import pytest
import torch
from support.sampling_cases import (
    EVERYTHING,
    TEMPERATURES,
    Choices,
    random_choices,
    random_logits,
    random_sampling,
    table_of,
)

from outrider.ops.sampling.logit_bias import add_bias_reference_
from outrider.ops.sampling.penalties import penalise_reference
from outrider.ops.sampling.top_k_top_p import filter_floors_reference, masses_reference
from outrider.sampling import sampler
from outrider.step.shape import SamplingFlags
from outrider.wire.row_sampling import Ban, Filters, RowSampling

pytest.importorskip("triton")
from support.masses import masses_of

from outrider.ops.sampling.logit_bias_triton import add_bias_triton_
from outrider.ops.sampling.penalties_triton import penalise_triton
from outrider.ops.sampling.sample_token_triton import sample_token_triton
from outrider.ops.sampling.top_k_top_p_triton import filter_floors_triton

if torch.cuda.is_available():
    pytest.skip("compiled there; see tests/gpu", allow_module_level=True)

FLOATS = [torch.float32, torch.bfloat16]
SMALL = [1, 7, 1000, 3001]
FILTERS = [
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


def sample_by_kernels(choices, sampling_flags):
    """What `sample_tokens` returns with the Triton form of every operation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler, "penalise", penalise_triton)
        patch.setattr(sampler, "add_bias_", add_bias_triton_)
        patch.setattr(sampler, "filter_floors", filter_floors_triton)
        patch.setattr(sampler, "sample_token", sample_token_triton)
        return sampler.sample_tokens(*choices.arguments(sampling_flags))


def choose_by_kernels(choices, sampling_flags):
    return sample_by_kernels(choices, sampling_flags).tokens


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
def test_greedy_and_noisy_rows_choose_as_the_reference(vocab, dtype):
    samplings = [RowSampling(seed=9 * t, temperature=x) for t, x in enumerate(TEMPERATURES)]
    choices = plain_choices(random_logits(1, len(samplings), vocab, dtype), samplings)
    for sampling_flags in (SamplingFlags(), SamplingFlags(noise=True)):
        assert torch.equal(
            choose_by_kernels(choices, sampling_flags), choices.reference(sampling_flags)
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
    sampled = sample_by_kernels(choices, sampling_flags)
    assert torch.equal(sampled.tokens, choices.reference(sampling_flags))
    assert sampled.tokens[[0, 2, 3, 4, 5]].tolist() == [0, 1500, 2, 0, 0]
    right = sampler.sample_tokens(*choices.arguments(sampling_flags))
    assert sampled.faults.tolist() == right.faults.tolist() == [2, 0, 1, 1, 1, 0]


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("part", ["penalties", "bias", "filters"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_each_part_of_logits_processing_chooses_as_the_reference(part, dtype):
    rng = random.Random(5)
    samplings = [random_sampling(rng, 1000) for _ in range(6)]
    choices = random_choices(6, samplings, vocab=1000, dtype=dtype)
    sampling_flags = SamplingFlags(noise=True, **{part: True})
    expected = choices.reference(sampling_flags)
    assert torch.equal(choose_by_kernels(choices, sampling_flags), expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_penalties_and_edits_have_the_bits_of_the_reference(dtype):
    rng = random.Random(2)
    samplings = [random_sampling(rng, 40) for _ in range(12)]
    given = random_choices(2, samplings, vocab=40, dtype=dtype)
    table, logits = given.table, given.logits.float().clone()
    right = penalise_reference(logits, table.penalties, given.rows, given.path)
    scores = penalise_triton(given.logits, table.penalties, given.rows, given.path)
    assert torch.equal(scores, right)
    add_bias_reference_(right, table.edits, given.rows, given.positions)
    add_bias_triton_(scores, table.edits, given.rows, given.positions)
    assert torch.equal(scores, right)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("vocab", SMALL)
def test_all_parts_together_choose_as_the_reference(vocab):
    rng = random.Random(vocab)
    samplings = [random_sampling(rng, vocab) for _ in range(5)]
    choices = random_choices(vocab, samplings, vocab=vocab, dtype=torch.bfloat16)
    assert torch.equal(choose_by_kernels(choices, EVERYTHING), choices.reference(EVERYTHING))


def assert_filters_keep_the_same(logits, samplings):
    choices = plain_choices(logits, samplings)
    filters, rows, values = choices.table.filters, choices.rows, logits.float()
    floors = filter_floors_triton(logits, filters, rows)
    right = filter_floors_reference(values, filters, rows)
    assert torch.equal(values >= floors[:, None], values >= right[:, None])


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("vocab", SMALL)
def test_filters_keep_exactly_the_tokens_of_the_reference(vocab, dtype):
    samplings = [
        RowSampling(seed=0, temperature=TEMPERATURES[row % 5], filters=filters)
        for row, filters in enumerate(FILTERS)
    ]
    assert_filters_keep_the_same(random_logits(vocab, len(FILTERS), vocab, dtype), samplings)


def test_top_k_of_every_size_keeps_the_tokens_of_the_reference():
    logits = torch.linspace(0, -15, 13).expand(13, 13).contiguous()
    samplings = [RowSampling(seed=0, filters=Filters(top_k=k)) for k in range(1, 14)]
    assert_filters_keep_the_same(logits, samplings)


def test_masses_are_those_of_the_reference():
    logits = random_logits(9, 8, 500)
    logits[:, ::50] = -torch.inf
    temperatures = torch.tensor([0.01, 0.3, 0.7, 1.0, 1.3, 1.7, 2.0, 10.0])
    best = logits.amax(1, keepdim=True)
    right = masses_reference(logits, best, temperatures[:, None])
    assert torch.equal(masses_of(logits, temperatures), right)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("dtype", FLOATS)
def test_more_candidates_than_there_is_room_for_are_searched_in_place(dtype):
    wanted = [Filters(top_p=0.98), Filters(top_k=5000), Filters(top_k=5500, top_p=0.9)]
    samplings = [RowSampling(seed=0, temperature=1.0, filters=filters) for filters in wanted]
    logits = random_logits(3, 3, 6001).div(20)
    assert_filters_keep_the_same(logits.to(dtype), samplings)


def test_a_value_that_fills_the_room_alone_is_kept_whole():
    logits = torch.zeros(2, 5000)
    logits[:, 4321] = 1.0
    wanted = [Filters(top_k=2), Filters(top_p=0.5)]
    samplings = [RowSampling(seed=0, temperature=1.0, filters=filters) for filters in wanted]
    assert_filters_keep_the_same(logits, samplings)


@pytest.mark.slow
def test_a_row_chooses_in_any_batch_what_it_chooses_alone():
    rng = random.Random(8)
    samplings = [random_sampling(rng, 2500) for _ in range(3)]
    choices = random_choices(8, samplings, vocab=2500)
    together = choose_by_kernels(choices, EVERYTHING)
    for place in range(3):
        one = slice(place, place + 1)
        alone = Choices(
            logits=choices.logits[one],
            table=choices.table,
            rows=choices.rows[one],
            positions=choices.positions[one],
            path=choices.path[one],
        )
        assert torch.equal(choose_by_kernels(alone, EVERYTHING), together[one])


def test_a_banned_token_that_is_also_biased_stays_banned():
    sampling = RowSampling(
        seed=0, temperature=0.0, bias=((3, 50.0),), ban=Ban(before=9, tokens=(3, 3))
    )
    choices = plain_choices(torch.zeros(2, 5), [sampling, sampling])
    tokens = choose_by_kernels(choices, SamplingFlags(bias=True))
    assert tokens.tolist() == [0, 3]  # at positions 0 and 17
