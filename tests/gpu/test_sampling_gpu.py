"""The compiled sampling kernels choose what the torch reference chooses on a CPU."""

import random

import pytest
import torch
from support.sampling_cases import (
    EVERYTHING,
    TEMPERATURES,
    Choices,
    random_choices,
    random_filters,
    random_logits,
    random_sampling,
    table_of,
)

from outrider.ops.sampling.gumbel_noise import gumbel_at
from outrider.ops.sampling.logit_bias import add_bias_
from outrider.ops.sampling.penalties import penalise
from outrider.ops.sampling.top_k_top_p import filter_floors, masses_reference
from outrider.sampling.draft_topk import likely_samples, likely_tokens
from outrider.sampling.sampler import sample_tokens
from outrider.step.shape import SamplingFlags
from outrider.wire.row_sampling import Filters, Penalties, RowSampling

FLOATS = [torch.bfloat16, torch.float32]
NO_NOISE, NOISE = SamplingFlags(), SamplingFlags(noise=True)


def plain_samplings(n):
    return [RowSampling(seed=31 * i, temperature=TEMPERATURES[i % 5]) for i in range(n)]


def assert_same_tokens(choices, samplings, sampling_flags):
    on_gpu = choices.to("cuda", samplings)
    assert torch.equal(
        sample_tokens(*on_gpu.arguments(sampling_flags)).tokens.cpu(),
        choices.reference(sampling_flags),
    )


@pytest.mark.parametrize("sampling_flags", [NO_NOISE, NOISE])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("n", "vocab"), [(1, 128_256), (3, 256_000), (5, 3001), (64, 151_936), (100, 49_152)]
)
def test_tokens_are_those_of_the_reference(n, vocab, dtype, sampling_flags):
    samplings = plain_samplings(n)
    choices = random_choices(n, samplings, vocab=vocab, dtype=dtype)
    assert_same_tokens(choices, samplings, sampling_flags)


@pytest.mark.parametrize("sampling_flags", [NO_NOISE, NOISE])
def test_tokens_of_thousands_of_rows_are_those_of_the_reference(sampling_flags):
    samplings = plain_samplings(7)
    table = table_of(samplings, vocab=10_007)
    rows = torch.arange(4096) % 7 + 1
    choices = Choices(
        logits=random_logits(2, 4096, 10_007, torch.bfloat16),
        table=table,
        rows=rows,
        positions=torch.arange(4096),
        path=torch.empty((4096, 0), dtype=torch.int64),
    )
    assert_same_tokens(choices, samplings, sampling_flags)


@pytest.mark.parametrize("sampling_flags", [NO_NOISE, NOISE])
def test_infinities_and_nan_win_and_lose_as_in_torch(sampling_flags):
    samplings = plain_samplings(6)
    choices = random_choices(3, samplings, vocab=32_000)
    choices.logits[0] = -torch.inf
    choices.logits[1, 7:] = -torch.inf
    choices.logits[2, [1500, 20_400]] = torch.inf
    choices.logits[3, [10_300, 2]] = torch.nan
    choices.logits[4] = -torch.nan
    choices.logits[5] = -0.0
    assert_same_tokens(choices, samplings, sampling_flags)
    on_gpu = choices.to("cuda", samplings)
    faults = sample_tokens(*on_gpu.arguments(sampling_flags)).faults
    assert faults.tolist() == [2, 0, 1, 1, 1, 0]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("seed", range(5))
def test_random_parameters_of_many_rows_choose_the_tokens_of_the_reference(seed, dtype):
    rng = random.Random(seed)
    samplings = [random_sampling(rng, 128_256) for _ in range(64)]
    choices = random_choices(seed, samplings, vocab=128_256, depth=15, dtype=dtype)
    assert_same_tokens(choices, samplings, EVERYTHING)


@pytest.mark.parametrize("dtype", FLOATS)
def test_penalties_and_edits_have_the_bits_of_the_reference(dtype):
    rng = random.Random(2)
    samplings = [random_sampling(rng, 49_152) for _ in range(30)]
    given = random_choices(2, samplings, vocab=49_152, depth=20, dtype=dtype)
    on_gpu = given.to("cuda", samplings)
    right = penalise(given.logits.float().clone(), given.table.penalties, given.rows, given.path)
    scores = penalise(on_gpu.logits, on_gpu.table.penalties, on_gpu.rows, on_gpu.path)
    assert torch.equal(scores.cpu(), right)
    add_bias_(right, given.table.edits, given.rows, given.positions)
    add_bias_(scores, on_gpu.table.edits, on_gpu.rows, on_gpu.positions)
    assert torch.equal(scores.cpu(), right)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("seed", range(3))
def test_filters_keep_exactly_the_tokens_of_the_reference(seed, dtype):
    rng, n, vocab = random.Random(seed), 40, 128_256
    samplings = [
        RowSampling(
            seed=0, temperature=rng.choice(TEMPERATURES), filters=random_filters(rng, vocab)
        )
        for _ in range(n)
    ]
    choices = random_choices(seed, samplings, vocab=vocab, dtype=dtype)
    on_gpu = choices.to("cuda", samplings)
    floors = filter_floors(on_gpu.logits, on_gpu.table.filters, on_gpu.rows).cpu()
    values = choices.logits.float()
    right = filter_floors(values, choices.table.filters, choices.rows)
    assert torch.equal(values >= floors[:, None], values >= right[:, None])


def test_masses_are_those_of_the_reference():
    from support.masses import masses_of  # without Triton this folder is still collected

    logits = random_logits(9, 8, 16_000)
    logits[:, ::50] = -torch.inf
    temperatures = torch.tensor([0.01, 0.3, 0.7, 1.0, 1.3, 1.7, 2.0, 10.0])
    right = masses_reference(logits, logits.amax(1, keepdim=True), temperatures[:, None])
    assert torch.equal(masses_of(logits.cuda(), temperatures.cuda()).cpu(), right)


def reference_likely(logits, target_ids, topk, *, table, rows, positions):
    """A stable sort: of equals the lower index comes first."""
    temperature = table.temperature[rows][:, None]
    noise = gumbel_at(table.seed[rows], positions, target_ids.expand(len(rows), -1))
    scale = torch.where(temperature > 0, temperature, 1.0)
    noisy = (logits.float() + noise * temperature) / scale
    index = noisy.sort(dim=-1, descending=True, stable=True).indices[:, :topk]
    return noisy.log_softmax(-1).gather(1, index), target_ids[index]


@pytest.mark.parametrize("is_noisy", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("n", "vocab", "topk"), [(1, 32_000, 1), (5, 32_000, 16), (64, 32_000, 4), (9, 151_936, 4)]
)
def test_likely_tokens_are_those_of_the_reference(n, vocab, topk, dtype, is_noisy):
    samplings = plain_samplings(n) if is_noisy else [RowSampling(seed=0, temperature=0.0)] * n
    table, rows = table_of(samplings, vocab=4), torch.arange(n) + 1
    logits, ids = random_logits(n, n, vocab, dtype), torch.arange(vocab) * 4 + 3
    positions = rows * 11
    place = {"table": table, "rows": rows, "positions": positions}
    logprobs, tokens = reference_likely(logits, ids, topk, **place)
    logits, ids = logits.cuda(), ids.cuda()
    if is_noisy:
        table = table_of(samplings, vocab=4, device="cuda")
        place = {"table": table, "rows": rows.cuda(), "positions": positions.cuda()}
        likely = likely_samples(logits, ids, topk, **place)
    else:
        likely = likely_tokens(logits, ids, topk)
    assert torch.equal(likely.tokens.cpu(), tokens)
    torch.testing.assert_close(likely.logprobs.cpu(), logprobs, rtol=1e-6, atol=1e-5)


def test_log_probabilities_do_not_depend_on_the_batch():
    logits, ids = random_logits(1, 300, 32_000, torch.bfloat16).cuda(), torch.arange(32_000).cuda()
    together = likely_tokens(logits, ids, 4)
    for row in (0, 7, 299):
        alone = likely_tokens(logits[row : row + 1], ids, 4)
        assert torch.equal(alone.logprobs[0], together.logprobs[row])
        assert torch.equal(alone.tokens[0], together.tokens[row])


def recorded(function):
    """The function as a CUDA graph, and its output."""
    function()  # compile
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = function()
    return graph, output


def test_a_recorded_choice_follows_its_inputs():
    rng = random.Random(11)
    samplings = [random_sampling(rng, 49_152) for _ in range(8)]
    first, second = (
        random_choices(seed, samplings, vocab=49_152, dtype=torch.bfloat16) for seed in (1, 2)
    )
    on_gpu = first.to("cuda", samplings)
    graph, tokens = recorded(lambda: sample_tokens(*on_gpu.arguments(EVERYTHING)).tokens)
    for choices in (first, second):
        for name in ("logits", "rows", "positions", "path"):
            vars(on_gpu)[name].copy_(vars(choices)[name])
        graph.replay()
        assert torch.equal(tokens.cpu(), choices.reference(EVERYTHING))


def test_a_recorded_guess_follows_its_inputs():
    table = table_of(plain_samplings(5), vocab=4, device="cuda")
    rows, positions = torch.arange(5).cuda() + 1, torch.arange(5).cuda()
    logits, ids = random_logits(1, 5, 32_000).cuda(), torch.arange(32_000).cuda()
    place = {"table": table, "rows": rows, "positions": positions}
    graph, likely = recorded(lambda: likely_samples(logits, ids, 4, **place))
    logits.copy_(random_logits(2, 5, 32_000))
    positions.add_(9)
    graph.replay()
    now = likely_samples(logits, ids, 4, **place)
    assert torch.equal(likely.tokens, now.tokens)
    assert torch.equal(likely.logprobs, now.logprobs)


def test_logits_are_not_written_without_penalties_or_bias():
    samplings = [RowSampling(seed=3, filters=Filters(top_p=0.9), penalties=Penalties(presence=1.0))]
    on_gpu = random_choices(1, samplings, vocab=32_000).to("cuda", samplings)
    before = on_gpu.logits.clone()
    sample_tokens(*on_gpu.arguments(SamplingFlags(noise=True, filters=True, penalties=True)))
    assert torch.equal(on_gpu.logits, before)
