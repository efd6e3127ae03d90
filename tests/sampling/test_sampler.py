"""A row's token depends on its own logits, seed and position, whatever else is in the batch."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from outrider.sampling.sampler import sample_tokens
from outrider.sampling.sampling_flags import decode_flags, joined_flags
from outrider.sampling.sampling_table import SamplingTable
from outrider.step.shape import SamplingFlags
from outrider.wire.row_sampling import Ban, Filters, LogprobsWanted, Penalties, RowSampling
from outrider.wire.scheduled_batch import RowAdmission

VOCAB = 50
SAMPLINGS = st.builds(
    RowSampling,
    seed=st.integers(0, 2**63 - 1),
    temperature=st.sampled_from([0.0, 0.0, 0.3, 1.0, 1.7]),
    filters=st.sampled_from(
        [
            Filters(),
            Filters(top_k=5),
            Filters(top_p=0.8),
            Filters(min_p=0.1),
            Filters(top_k=9, top_p=0.6),
        ]
    ),
    penalties=st.sampled_from([Penalties(), Penalties(repetition=1.4), Penalties(frequency=0.5)]),
    bias=st.sampled_from([(), ((3, 4.0), (0, -2.0))]),
    ban=st.sampled_from([Ban(), Ban(before=1000, tokens=(0, 7, 9))]),
)


def table_of(samplings):
    """Rows 1, 2, ... with these parameters, each with a history if it has penalties."""
    table = SamplingTable(rows=len(samplings) + 1, vocab=VOCAB, device=torch.device("cpu"))
    table.admit(
        [
            RowAdmission(row=row, sampling=sampling, prompt=(1, 2), output=(3, 3, 4))
            for row, sampling in enumerate(samplings, start=1)
        ]
    )
    return table


def choose_rows(logits, table, rows, sampling_flags):
    """Tokens and final scores of some rows; row r stands at position 40 r, after tokens 5 and r."""
    rows = torch.tensor(rows)
    path = torch.stack([torch.full_like(rows, 5), rows], dim=1)
    scores = logits[rows - 1]
    return sample_tokens(scores, table, rows, rows * 40, path, sampling_flags).tokens, scores


@settings(deadline=None, max_examples=80)
@given(
    data=st.data(), samplings=st.lists(SAMPLINGS, min_size=2, max_size=6), seed=st.integers(0, 99)
)
def test_a_row_chooses_in_any_batch_what_it_chooses_alone(data, samplings, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(samplings), VOCAB, generator=generator).mul_(3)
    table = table_of(samplings)
    order = data.draw(st.permutations(range(1, len(samplings) + 1)))
    tokens, scores = choose_rows(
        logits, table, order, joined_flags([*map(decode_flags, samplings)])
    )
    for place, row in enumerate(order):
        sampling = samplings[row - 1]
        token, score = choose_rows(logits, table, [row], decode_flags(sampling))
        assert tokens[place] == token
        if (
            sampling.temperature > 0
        ):  # alone, a greedy row skips its filters: other scores, same token
            assert torch.equal(scores[place], score[0])


def test_greedy_ties_go_to_the_lowest_id():
    table = table_of([RowSampling(seed=1, temperature=0.0), RowSampling(seed=1)])
    logits = torch.zeros(2, VOCAB)
    logits[:, 31] = logits[:, 17] = logits[:, 44] = 60.0  # far above any noise
    greedy, _ = choose_rows(logits, table, [1], SamplingFlags())
    beside_noise, _ = choose_rows(logits, table, [1, 2], SamplingFlags(noise=True, filters=True))
    assert greedy.tolist() == [17]
    assert beside_noise[0] == 17


def test_temperature_towards_zero_becomes_greedy():
    table = table_of([RowSampling(seed=1, temperature=1e-4), RowSampling(seed=1, temperature=0.0)])
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(0)).expand(2, VOCAB)
    tokens, _ = choose_rows(logits, table, [1, 2], SamplingFlags(noise=True))
    assert tokens[0] == tokens[1]


def test_choosing_reads_nothing_on_the_host():
    class RefusesHostReads(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            assert func is not torch.ops.aten._local_scalar_dense.default
            return func(*args, **(kwargs or {}))

    everything = SamplingFlags(noise=True, filters=True, penalties=True, bias=True)
    table = table_of([RowSampling(seed=1)] * 3)
    logits = torch.randn(3, VOCAB)
    rows, path = torch.tensor([1, 2, 3]), torch.full((3, 2), -1)
    with RefusesHostReads():
        sample_tokens(logits, table, rows, rows, path, everything)


def test_a_part_is_needed_if_any_row_needs_it():
    assert joined_flags([]) == SamplingFlags()
    assert decode_flags(RowSampling(seed=1, temperature=0.0)) == SamplingFlags()
    samplings = [
        RowSampling(seed=1, temperature=0.0, ban=Ban(before=3, tokens=(1,))),
        RowSampling(seed=2, filters=Filters(min_p=0.1)),
        RowSampling(seed=3, logprobs=LogprobsWanted(chosen=True, top=4)),
    ]
    assert joined_flags([*map(decode_flags, samplings)]) == SamplingFlags(
        noise=True, filters=True, bias=True, logprobs=True, top_logprobs=5
    )


def test_filters_of_a_greedy_row_are_not_needed():
    greedy = RowSampling(seed=1, temperature=0.0, filters=Filters(top_k=4))
    assert decode_flags(greedy) == SamplingFlags()
