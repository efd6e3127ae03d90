"""Ranks with requests of their own and experts on all of them: every answer is the reference's.

In every trace one rank has no request for at least ten steps. A rank without requests writes to no
page, and all ranks make the same number of collectives in every step.
`pytest -m matrix tests/distributed/test_data_traces.py` runs 100 random traces.
"""

import random
from dataclasses import replace

import pytest
from support.data_traces import (
    IDLE_STEPS,
    StepFailed,
    ThreadRunner,
    Trace,
    random_trace,
    run_trace,
)
from support.tiny import EXPERTS

from outrider.models.layers import router
from outrider.models.layers.expert_parallel import ExchangedExperts
from outrider.ops.moe.routing import select_experts
from outrider.runtime.runner import AgreedStep
from outrider.step.step_sizes import sizes_of
from outrider.wire.draft_budget import PLAIN

HEADS = ("none", "eagle3", "mtp", "modules")
FAMILIES = {"deepseek-v3": HEADS, "qwen3-moe": HEADS, "deepseek-v4": ("none", "mtp")}
NUM_TRACES = 100
BASE = Trace(family="qwen3-moe", size=2, drafter="mtp", seed=5)


@pytest.fixture
def run(rank_matrix):
    def run(trace, wrap=lambda runner: runner):
        seen = []

        def keep(runner):
            seen.append(wrap(runner))
            return seen[0]

        models = rank_matrix.family(trace.family).on(trace.size, has_own_requests=True)
        wrong = run_trace(models, trace, keep)
        assert seen[0].most_idle >= IDLE_STEPS, "a rank has no request for a while"
        assert seen[0].num_collectives, "experts are exchanged"
        return wrong

    return run


@pytest.mark.slow
@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    "trace",
    [
        BASE,
        replace(BASE, family="deepseek-v3", size=3, drafter="eagle3", executor="tape"),
        replace(BASE, family="deepseek-v4", drafter="none", pad=4),
        replace(BASE, family="deepseek-v4", drafter="mtp", executor="tape"),
        replace(BASE, family="deepseek-v3", drafter="modules", pad=4),
    ],
    ids=str,
)
def test_every_answer_is_that_of_the_reference_decoder(run, trace):
    assert not run(trace)


@pytest.mark.matrix
@pytest.mark.timeout(3600)
def test_many_traces(run):
    rng = random.Random(18)
    traces = [random_trace(rng, families=FAMILIES) for _ in range(NUM_TRACES)]
    found = {str(trace): run(trace) for trace in traces}
    assert not {trace: wrong for trace, wrong in found.items() if wrong}


class OwnSizes(ThreadRunner):
    """Every rank fits its own sizes: they are agreed on too late."""

    def run(self, rank, batch, agreed):
        own = AgreedStep(sizes_of(batch), agreed.sampling_flags)
        return super().run(rank, batch, agreed if batch.is_empty else own)


class IdleWithoutDrafts(ThreadRunner):
    """A rank without requests skips drafting."""

    def run(self, rank, batch, agreed):
        if batch.is_empty:
            agreed = AgreedStep(replace(agreed.sizes, tree=PLAIN), agreed.sampling_flags)
        return super().run(rank, batch, agreed)


class LocalFlags(ThreadRunner):
    """A rank decides by itself which parts of sampling and drafting run."""

    def run(self, rank, batch, agreed):
        sizes = replace(agreed.sizes, decodes=sizes_of(batch).decodes or agreed.sizes.decodes)
        return super().run(rank, batch, AgreedStep(sizes, agreed.sampling_flags))


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [OwnSizes, IdleWithoutDrafts, LocalFlags])
def test_ranks_that_do_not_agree_are_found(run, mutant):
    def broken(runner):
        return mutant(runner._group, runner.runners)

    try:
        wrong = run(BASE, broken)
    except StepFailed:
        return
    assert wrong


def idle_ranks_that_ask(run, monkeypatch) -> int:
    """Run a trace; in how many layers a rank without requests asked an expert."""
    asked, add = [], ExchangedExperts.add_

    class Watched(ThreadRunner):
        def run(self, rank, batch, agreed):
            idle.append(rank) if batch.is_empty else None
            step = super().run(rank, batch, agreed)
            idle.clear()
            return step

    def watched(self, x, routing, residual):
        is_real = routing.experts < EXPERTS["num_experts"]
        if self._ranks.rank in idle:
            asked.append(bool(is_real.any()))
        add(self, x, routing, residual)

    idle: list[int] = []
    monkeypatch.setattr(ExchangedExperts, "add_", watched)
    assert not run(replace(BASE, drafter="none"), lambda own: Watched(own._group, own.runners))
    assert asked, "a rank was idle"
    return sum(asked)


@pytest.mark.slow
def test_padding_asks_no_expert(run, monkeypatch):
    assert idle_ranks_that_ask(run, monkeypatch) == 0


@pytest.mark.slow
def test_padding_that_asks_experts_is_found(run, monkeypatch):
    def without_mask(logits, config, bias, slots, *, page_size):
        return select_experts(logits, config, bias)

    monkeypatch.setattr(router, "route", without_mask)
    assert idle_ranks_that_ask(run, monkeypatch) > 0
