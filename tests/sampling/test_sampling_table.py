"""Rows of the sampling table change owners completely and count only what was emitted."""

import pytest
import torch

from outrider.sampling.sampler import sample_tokens
from outrider.sampling.sampling_flags import decode_flags
from outrider.sampling.sampling_table import SamplingTable
from outrider.wire.row_sampling import (
    MAX_BANNED,
    MAX_BIAS,
    Ban,
    Filters,
    Penalties,
    RowSampling,
)
from outrider.wire.scheduled_batch import RowAdmission

VOCAB = 2048
PLAIN = RowSampling(seed=5, temperature=0.7)
DEMANDING = RowSampling(
    seed=2**63 - 1,
    temperature=1.5,
    filters=Filters(top_k=3, top_p=0.5, min_p=0.1),
    penalties=Penalties(repetition=1.5, presence=1.0, frequency=0.5),
    bias=tuple((token, 1.0) for token in range(MAX_BIAS)),
    ban=Ban(before=100, tokens=tuple(range(MAX_BANNED))),
)


@pytest.fixture
def table():
    return SamplingTable(rows=4, vocab=VOCAB, device=torch.device("cpu"))


def admission(row, sampling, *, prompt=(), output=()):
    return RowAdmission(row=row, sampling=sampling, prompt=prompt, output=output)


def sampling_of(table, row):
    """The scores of a row at one place, all parts run."""
    logits = torch.linspace(-3, 3, VOCAB)[None]
    rows, positions = torch.tensor([row]), torch.tensor([50])
    sample_tokens(logits, table, rows, positions, rows.new_empty((1, 0)), decode_flags(DEMANDING))
    return logits


def test_a_new_owner_inherits_nothing(table):
    table.admit([admission(1, DEMANDING, prompt=(1, 2), output=(3, 3, 4))])
    table.admit([admission(1, PLAIN), admission(2, PLAIN)])
    assert torch.equal(sampling_of(table, 1), sampling_of(table, 2))
    assert table.output_counts[1].sum() == 0
    assert not table.penalties.prompt_seen[1].any()


def test_admission_leaves_other_rows_alone(table):
    table.admit([admission(1, DEMANDING, prompt=(1,), output=(2,))])
    before = sampling_of(table, 1)
    table.admit([admission(3, PLAIN), admission(2, DEMANDING, output=(7,))])
    assert torch.equal(sampling_of(table, 1), before)


def test_a_preempted_row_returns_with_the_counts_it_had(table):
    table.admit([admission(1, DEMANDING), admission(2, DEMANDING, output=(9, 4, 9))])
    tokens = torch.tensor([[9, 4], [9, 0]])
    table.record(torch.tensor([1, 1]), tokens, torch.tensor([[True, True], [True, False]]))
    assert torch.equal(table.output_counts[1], table.output_counts[2])
    assert table.output_counts[1, 9] == 2


def test_tokens_that_were_not_emitted_are_counted_nowhere(table):
    table.record(torch.tensor([1, 3]), torch.tensor([[5], [6]]), torch.zeros(2, 1).bool())
    assert table.output_counts.sum() == 0


def test_padding_chooses_greedily(table):
    assert table.temperature[0] == 0
    assert torch.equal(sampling_of(table, 0).argmax(1), torch.tensor([VOCAB - 1]))


def test_admitting_no_request_changes_nothing(table):
    before = sampling_of(table, 1)
    table.admit([])
    assert torch.equal(sampling_of(table, 1), before)
