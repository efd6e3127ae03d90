"""Known mistakes, put one at a time into what becomes of states: each is noticed by the engine."""

import pytest
import torch
from support.recurrent import CPU, saved_recurrent
from support.row_matrix import CHAIN, Case, mismatches, run_case, shape_of

from outrider.models.target import load_target
from outrider.ops.recurrent import fill_recurrent
from outrider.ops.sparse import ring_plan

CASES = [
    Case("sampled", CHAIN, shape_of(CHAIN, chunk=7, pad=4, executor="tape", depth=1)),
    Case("greedy", CHAIN, shape_of(CHAIN, chunk=7, max_rows=1)),  # one row for all, in turn
]


@pytest.fixture(scope="module")
def models(folders):
    theirs = saved_recurrent(folders["qwen3.5"], "qwen3.5")
    return theirs, load_target(folders["qwen3.5"], dtype="float32", device=CPU)


def after_fill(monkeypatch, change):
    original = fill_recurrent._fill_states

    def changed(states, state_lengths, rows, **sizes):
        original(states, state_lengths, rows, **sizes)
        change(states.accepted_counts, states.counts)

    monkeypatch.setattr(fill_recurrent, "_fill_states", changed)


def apply_all_drafts(monkeypatch):
    """Rejected drafts change the state like the accepted ones."""

    def change(accepted_counts, counts):
        accepted_counts.copy_(torch.where(accepted_counts > 0, counts[0], accepted_counts))

    after_fill(monkeypatch, change)


def apply_no_draft(monkeypatch):
    """The accepted drafts of a step are forgotten."""
    after_fill(monkeypatch, lambda accepted_counts, _: accepted_counts.clamp_max_(0))


def go_on_with_the_state_of_the_former_owner(monkeypatch):
    """A text that begins in a used row goes on from the row's old state."""
    after_fill(monkeypatch, lambda accepted_counts, _: accepted_counts.clamp_min_(0))


def convolve_without_the_ring(monkeypatch):
    """The first tokens of a step see nothing of the step before."""
    original = ring_plan.fill_sources

    def fresh_only(plan, rows, owners, lasts, *, length, table_rows):
        original(plan, rows, owners, lasts, length=length, table_rows=table_rows)
        plan.sources.masked_fill_(plan.sources < table_rows * length, -1)

    monkeypatch.setattr(ring_plan, "fill_sources", fresh_only)


MUTATIONS = [
    apply_all_drafts,
    apply_no_draft,
    go_on_with_the_state_of_the_former_owner,
    convolve_without_the_ring,
]


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_unharmed_engine_passes_where_mutants_are_caught(models, case):
    assert not mismatches(*models, case)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_a_wrong_answer_gives_away(models, monkeypatch, mutate):
    """A mutant that does not even run proves nothing."""
    mutate(monkeypatch)
    outputs = run_case(models[1], CASES[0])
    assert {entry.last.finish for entry in outputs.values()} == {"length"}
    assert any(mismatches(*models, case) for case in CASES)
