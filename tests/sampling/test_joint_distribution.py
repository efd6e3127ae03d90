"""Sequences drawn by `choose_tokens` have exactly the joint distribution of the logits."""

import numpy as np
import pytest
import torch
from scipy import stats

from outrider.sampling.sampler import sample_tokens
from outrider.sampling.sampling_table import SamplingTable
from outrider.step.shape import SamplingFlags
from outrider.wire.row_sampling import RowSampling
from outrider.wire.scheduled_batch import RowAdmission

VOCAB, LENGTH, BATCH = 4, 4, 2048
ALPHA = 1e-6
FIRST_POSITION = 100
NO_PATH = torch.empty((BATCH, 0), dtype=torch.int64)


@pytest.fixture(scope="module")
def model():
    """Logits after every prefix: [VOCAB ** depth, VOCAB] for each depth."""
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(VOCAB**depth, VOCAB, generator=generator) for depth in range(LENGTH)]


@pytest.fixture(scope="module")
def table():
    table = SamplingTable(rows=BATCH, vocab=VOCAB, device=torch.device("cpu"))
    sampling = RowSampling(seed=0, temperature=1.0)
    rows = range(BATCH)
    table.admit([RowAdmission(row=row, sampling=sampling, prompt=(), output=()) for row in rows])
    return table


def count_sequences(model, table, *, batches, positions=range(FIRST_POSITION, FIRST_POSITION + 4)):
    """How often each of the VOCAB ** LENGTH sequences occurs; every sequence has its own seed."""
    counts = torch.zeros(VOCAB**LENGTH, dtype=torch.int64)
    rows = torch.arange(BATCH)
    for batch in range(batches):
        table.seed.copy_(rows + batch * BATCH)
        prefix = torch.zeros(BATCH, dtype=torch.int64)
        for logits, position in zip(model, positions, strict=True):
            place = torch.full((BATCH,), position)
            tokens = sample_tokens(
                logits.index_select(0, prefix),
                table,
                rows,
                place,
                NO_PATH,
                SamplingFlags(noise=True),
            ).tokens
            prefix = prefix * VOCAB + tokens
        counts += torch.bincount(prefix, minlength=VOCAB**LENGTH)
    return counts.numpy()


def joint_distribution(model):
    shares = np.ones(1)
    for logits in model:
        shares = (shares[:, None] * logits.double().softmax(1).numpy()).flatten()
    return shares


def p_value(model, counts):
    expected = joint_distribution(model) * counts.sum()
    return stats.chisquare(counts, expected).pvalue


@pytest.mark.slow
def test_a_million_sequences_have_the_joint_law_of_the_model(model, table):
    counts = count_sequences(model, table, batches=512)
    assert counts.sum() == 2**20
    assert p_value(model, counts) > ALPHA


def test_the_checker_rejects_noise_that_ignores_the_position(model, table):
    counts = count_sequences(model, table, batches=32, positions=[FIRST_POSITION] * 4)
    assert p_value(model, counts) < ALPHA


def test_the_checker_rejects_noise_that_is_a_little_too_small(model, table):
    table.temperature.fill_(0.97)
    counts = count_sequences(model, table, batches=128)
    table.temperature.fill_(1.0)
    assert p_value(model, counts) < ALPHA


def test_the_checker_rejects_logits_that_ignore_the_context(model, table):
    forgetful = [logits[:1].expand_as(logits) for logits in model]
    counts = count_sequences(forgetful, table, batches=32)
    assert p_value(model, counts) < ALPHA
