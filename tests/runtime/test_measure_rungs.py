"""Dummy runs at start tell adaptive drafting what drafts cost."""

from dataclasses import replace
from itertools import groupby

import pytest
import torch
from support.engines import Shape, buckets_of, settings_of
from support.tiny import save_tiny

from outrider.distributed.rank_group import ONE_RANK, OneRank
from outrider.models.decoder_loader import load_decoder
from outrider.runtime.build_runner import assemble_runner
from outrider.runtime.draft_rungs import rungs_of
from outrider.runtime.measure_rungs import _sizes, measure_rungs
from outrider.wire.draft_budget import Budget, ladder_of

TREE = Budget(steps=4, topk=2, nodes=8)
SHAPE = Shape(max_rows=5)


def assemble(models, *, is_adaptive, target=None, drafter="eagle3", ranks=ONE_RANK):
    """A runner with room for 5 rows, and its facts."""
    draft = replace(models.draft(drafter, TREE), is_adaptive=is_adaptive)
    return draft, *assemble_runner(
        target or models.target,
        settings_of(SHAPE),
        draft=draft,
        kv_tokens=SHAPE.kv_tokens,
        buckets=buckets_of(SHAPE),
        ranks=ranks,
    )


def test_adaptive_drafting_knows_what_drafts_cost_before_the_first_request(models, monkeypatch):
    monkeypatch.setattr("outrider.runtime.build_runner.HOST_S", 100.0)  # a busy machine is slow
    _, _, facts = assemble(models, is_adaptive=True)
    sizes = [(cost.rows, cost.drafts) for cost in facts.draft.costs]
    assert sizes == [(rows, drafts) for rows in (1, 2, 4) for drafts in (0, 2, 7)]
    assert all(cost.seconds > 0 for cost in facts.draft.costs)


def test_forms_that_share_drafts_are_not_measured():
    """Costs are told apart by drafts alone, and a form that shares has a draft step more."""
    ladder = ladder_of(Budget(steps=2, nodes=3), is_shared=True)
    assert [(rung.drafts, rung.is_shared) for rung in ladder[1:3]] == [(1, False), (1, True)]
    sizes = dict(_sizes(buckets_of(SHAPE), lambda _: ladder, most_rows=4))
    assert sizes == dict.fromkeys((1, 2, 4), (ladder[0], ladder[1], ladder[3]))


def test_nothing_is_measured_for_drafts_of_a_fixed_size(models):
    _, _, facts = assemble(models, is_adaptive=False)
    assert facts.draft.costs == ()


def test_ranks_beside_others_measure_nothing(models):
    """Each would stop by its own clock, and steps with divided experts wait for all ranks."""
    _, _, facts = assemble(models, is_adaptive=True, ranks=OneRank(beside=ONE_RANK))
    assert facts.draft.costs == ()


def test_nothing_is_measured_where_padding_reads_no_experts(models, tmp_path):
    save_tiny("qwen3-moe", tmp_path)
    target = load_decoder(tmp_path, dtype="float32", device=torch.device("cpu"))
    _, _, facts = assemble(models, is_adaptive=True, target=target, drafter="ngram")
    assert facts.draft.costs == ()


class ColdRunner:
    """Its first run reads weights from cold memory, and takes five times as long as later ones."""

    def __init__(self, clock):
        self.clock, self.rows = clock, []

    def dummy_run(self, shape):
        self.clock[0] += 0.01 + 0.001 * shape.num_query if self.rows else 0.08
        self.rows.append(shape.rows)


def measure(monkeypatch, *, most_s):
    """What is measured on a cold machine, and the rows of its dummy runs."""
    clock = [0.0]
    monkeypatch.setattr("outrider.runtime.measure_rungs.time.perf_counter", lambda: clock[0])
    ladder, runner = ladder_of(TREE, is_shared=False), ColdRunner(clock)
    costs = measure_rungs(runner, buckets_of(SHAPE), lambda _: ladder, most_rows=5, most_s=most_s)
    return costs, runner.rows


def test_steps_of_few_rows_run_once_more_when_all_were_measured(monkeypatch):
    costs, rows = measure(monkeypatch, most_s=10.0)
    assert [each for each, _ in groupby(rows)] == [1, 2, 4, 1, 2, 1, 2, 1, 2]
    assert {cost.rows for cost in costs} == {1, 2, 4}


def test_the_first_run_of_all_does_not_count(monkeypatch):
    costs, _ = measure(monkeypatch, most_s=0.25)
    assert [(cost.rows, cost.drafts) for cost in costs][:3] == [(1, 0), (1, 2), (1, 7)]
    assert [cost.seconds for cost in costs][:3] == pytest.approx([0.011, 0.013, 0.018])


@pytest.mark.parametrize("most_s", [0.0, 1e-6])
def test_a_machine_whose_steps_are_slow_runs_one_of_them(models, most_s):
    draft, runner, _ = assemble(models, is_adaptive=True)
    rungs, before = rungs_of(draft, buckets_of(SHAPE), settings_of(SHAPE).execution), runner.counts
    costs = measure_rungs(runner, buckets_of(SHAPE), rungs, most_rows=5, most_s=most_s)
    assert costs == ()
    assert runner.counts.steps - before.steps == 1  # a plain step of one row
