"""Each part of logits processing against a plain reference: sorts, loops, numpy in float64."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from outrider.ops.sampling.logit_bias import add_bias_
from outrider.ops.sampling.penalties import penalise
from outrider.ops.sampling.top_k_top_p import filter_floors
from outrider.sampling.sampling_table import SamplingTable
from outrider.wire.row_sampling import Ban, Filters, Penalties, RowSampling
from outrider.wire.scheduled_batch import RowAdmission

ROW = torch.tensor([1])


def table_with(sampling, *, vocab, prompt=(), output=()):
    table = SamplingTable(rows=2, vocab=vocab, device=torch.device("cpu"))
    table.admit([RowAdmission(row=1, sampling=sampling, prompt=prompt, output=output)])
    return table


def kept(logits, filters, temperature):
    """Which tokens the filters keep."""
    sampling = RowSampling(seed=0, temperature=temperature, filters=filters)
    table = table_with(sampling, vocab=len(logits))
    (floor,) = filter_floors(torch.tensor(logits)[None], table.filters, ROW)
    return (logits >= floor.numpy()) & (logits > -np.inf)


def reference_kept(logits, filters, temperature):
    """top-k, then top-p of the survivors, then min-p; ties at a threshold stay.

    Also says how close the nearest probability comes to a threshold, where float32 may disagree.
    """
    z = logits.astype(np.float64) / np.float64(np.float32(temperature))
    share_of_best = np.exp(z - z.max())
    margin = np.inf
    kth = np.sort(z)[::-1][min(filters.top_k or len(z), len(z)) - 1]
    alive = z >= kth
    if filters.top_p < 1:
        total, top_p = share_of_best[alive].sum(), np.float64(np.float32(filters.top_p))
        values = np.unique(z[alive])
        share = np.array([share_of_best[z >= value].sum() / total for value in values])
        alive &= z >= values[share >= top_p].max()
        margin = min(margin, abs(share - top_p).min())
    if filters.min_p > 0:
        alive &= share_of_best >= filters.min_p
        margin = min(margin, abs(share_of_best - filters.min_p).min())
    return alive, margin


LOGITS = st.lists(
    st.one_of(
        st.sampled_from([-5.0, -0.0, 0.0, 1.0, 2.5]),  # ties
        st.floats(-30, 30, width=32),
    ),
    min_size=1,
    max_size=40,
).map(lambda values: np.array(values, dtype=np.float32))
FILTERS = st.builds(
    Filters,
    top_k=st.integers(0, 45),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 1.0)),
    min_p=st.one_of(st.just(0.0), st.floats(0.0001, 1.0)),
)


@settings(deadline=None, max_examples=150)
@given(logits=LOGITS, filters=FILTERS, temperature=st.floats(0.1, 3.0))
def test_filters_keep_what_a_sort_would_keep(logits, filters, temperature):
    expected, margin = reference_kept(logits, filters, temperature)
    assume(margin > 2e-6)
    assert kept(logits, filters, temperature).tolist() == expected.tolist()


@pytest.mark.parametrize("seed", range(4))
def test_filters_keep_what_a_sort_would_keep_in_a_large_vocabulary(seed):
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 3, 5001).astype(np.float32)
    logits[::7] = np.round(logits[::7])  # ties
    filters = Filters(
        top_k=int(generator.integers(0, 5001)), top_p=float(generator.random()), min_p=1e-4
    )
    expected, _ = reference_kept(logits, filters, 0.7)
    assert kept(logits, filters, 0.7).tolist() == expected.tolist()


def test_top_p_of_a_tiny_share_keeps_the_most_likely_token():
    assert kept(np.float32([1, 3, 2]), Filters(top_p=1e-9), 1.0).tolist() == [False, True, False]


def test_tokens_as_likely_as_the_last_one_kept_stay():
    logits = np.float32([1, 2, 2, 2, 0])
    assert kept(logits, Filters(top_k=2), 1.0).tolist() == [False, True, True, True, False]
    assert kept(logits, Filters(top_p=0.3), 1.0).tolist() == [False, True, True, True, False]


def test_zeros_of_both_signs_are_ties():
    assert kept(np.float32([0.0, -0.0, -1.0]), Filters(top_k=1), 1.0).sum() == 2
    # all three survive top-k and e^2 is 0.79 of their mass; of two of them it would be 0.88
    assert kept(np.float32([2.0, 0.0, -0.0]), Filters(top_k=2, top_p=0.85), 1.0).sum() == 3


def test_top_p_counts_only_what_top_k_left():
    logits = np.log(np.float32([0.4, 0.3, 0.2, 0.1]))
    # of all, 0.4 is less than half; of the two that top-k leaves, 4/7 is more
    assert kept(logits, Filters(top_p=0.5), 1.0).sum() == 2
    assert kept(logits, Filters(top_k=2, top_p=0.5), 1.0).sum() == 1


def test_filters_never_let_a_banned_token_back():
    logits = np.float32([1.0, -np.inf, 0.5])
    assert kept(logits, Filters(top_p=0.999), 1.0).tolist() == [True, False, True]


def reference_penalised(logits, penalties, prompt, output):
    z = logits.astype(np.float64)
    for token in range(len(z)):
        if token in prompt or token in output:
            z[token] *= penalties.repetition if z[token] < 0 else 1 / penalties.repetition
        if token in output:
            z[token] -= penalties.presence + penalties.frequency * output.count(token)
    return z


HISTORY = st.lists(st.integers(0, 11), max_size=9).map(tuple)
PENALTIES = st.builds(
    Penalties,
    repetition=st.floats(0.5, 2.0),
    presence=st.floats(-2.0, 2.0),
    frequency=st.floats(-2.0, 2.0),
)


@settings(deadline=None, max_examples=60)
@given(penalties=PENALTIES, prompt=HISTORY, output=HISTORY, path=HISTORY, seed=st.integers(0, 99))
def test_penalties_count_the_prompt_the_output_and_the_path(penalties, prompt, output, path, seed):
    logits = np.random.default_rng(seed).normal(0, 5, 12).astype(np.float32)
    sampling = RowSampling(seed=0, penalties=penalties)
    table = table_with(sampling, vocab=12, prompt=prompt, output=output)
    work = torch.tensor(logits)[None]
    penalise(work, table.penalties, ROW, torch.tensor([[*path, -1]]))
    expected = reference_penalised(logits, penalties, prompt, output + path)
    np.testing.assert_allclose(work[0].numpy(), expected, rtol=1e-5, atol=1e-5)


def test_penalties_of_tree_nodes_count_each_its_own_path():
    table = table_with(RowSampling(seed=0, penalties=Penalties(presence=1.0)), vocab=4)
    work = torch.zeros(3, 4)
    path = torch.tensor([[-1, -1], [2, -1], [2, 3]])
    penalise(work, table.penalties, ROW.expand(3), path)
    assert work.tolist() == [[0, 0, 0, 0], [0, 0, -1, 0], [0, 0, -1, -1]]


def test_path_tokens_are_penalised_as_if_they_had_been_recorded():
    penalties = Penalties(repetition=1.3, presence=0.2, frequency=0.7)
    table = table_with(RowSampling(seed=0, penalties=penalties), vocab=9, prompt=(1,), output=(2,))
    logits = torch.randn(1, 9, generator=torch.Generator().manual_seed(3))
    path = torch.tensor([[4, 4, 2]])
    on_the_way, recorded = logits.clone(), logits.clone()
    penalise(on_the_way, table.penalties, ROW, path)
    table.record(ROW, path, torch.ones_like(path, dtype=torch.bool))
    penalise(recorded, table.penalties, ROW, path[:, :0])
    assert torch.equal(on_the_way, recorded)


def test_bias_is_added_and_bans_end_at_their_position():
    sampling = RowSampling(seed=0, bias=((0, 2.5), (3, -1.0)), ban=Ban(before=10, tokens=(1, 3)))
    table = table_with(sampling, vocab=5)
    work = torch.ones(2, 5)
    add_bias_(work, table.edits, ROW.expand(2), torch.tensor([9, 10]))
    assert work.tolist() == [[3.5, 1.0 - np.inf, 1.0, -np.inf, 1.0], [3.5, 1.0, 1.0, 0.0, 1.0]]
