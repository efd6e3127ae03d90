"""A head on a CPU reads several plain steps at once, as if it had read them one by one."""

import random

import pytest
import torch
from support.engines import Shape, engine_of, make_submission
from support.heads import write_head
from support.tiny import VOCAB

from outrider.engine.draft_policy import WholeBudget
from outrider.models.eagle.head_loader import load_head
from outrider.runtime.draft_kinds import ModelDraft
from outrider.spec.postponed_steps import PostponedSteps
from outrider.step.shape import ChunkShape, SamplingFlags, StepShape
from outrider.wire.draft_budget import PLAIN, UNBOUNDED, Budget, whole_rung
from outrider.wire.row_sampling import RowSampling

TREE = Budget(steps=3, topk=2, nodes=6)
TRACED = RowSampling(seed=0, temperature=0.0, trace=True)
LENGTHS = (5, 40, 12, 29, 3, 17)  # of answers: rows end while others go on


class FewStepsDraft(WholeBudget):
    """One step in six drafts, on average."""

    def __init__(self):
        self._rng = random.Random(1)

    def choose(self, step, *, num_rows, num_prompt):
        return whole_rung(self._rng.choice([*[PLAIN] * 5, UNBOUNDED]))


@pytest.fixture(name="head")
def float32_head(models, tmp_path):
    return load_head(
        write_head(tmp_path, models.target.config),
        target=models.target,
        target_folder=models.folder,
        dtype="float32",
        device=torch.device("cpu"),
    )


def drafter_of(engine):
    return engine._runner._program.drafter._drafter


def engine_with(models, head, shape):
    engine = engine_of(models.target, shape, ModelDraft(model=head, budget=TREE))
    engine._scheduler._policy = FewStepsDraft()
    return engine


def rounds_of(engine):
    """The drafts and the accepted tokens of every round, by request."""
    for index, length in enumerate(LENGTHS):
        prompt = [(7 * index + 3 * k) % VOCAB for k in range(4 + 5 * index)]
        engine.add(make_submission(str(index), prompt, TRACED, max_tokens=length))
    rounds = {}
    while engine.has_work:
        for update in engine.step():
            rounds.setdefault(update.request_id, []).extend(update.rounds)
    assert not engine.num_drafter_failures
    return rounds


def num_drafted(rounds):
    return sum(len(each.tokens) > 1 for every in rounds.values() for each in every)


SHAPES = {
    "few pages": Shape(max_rows=3, kv_tokens=160, max_context=80),  # they are used again at once
    "tape": Shape(max_rows=3, executor="tape", pad=4, depth=1),
}


@pytest.mark.parametrize("name", ["few pages", pytest.param("tape", marks=pytest.mark.slow)])
def test_steps_that_wait_change_no_draft(models, head, name, monkeypatch):
    shape = SHAPES[name]
    reads, catch_up = [], head.catch_up
    monkeypatch.setattr(
        head, "catch_up", lambda plan, *args: reads.append(1) or catch_up(plan, *args)
    )
    found, num_reads = rounds_of(engine_with(models, head, shape)), len(reads)
    at_once = engine_with(models, head, shape)
    drafter_of(at_once)._postponed = None
    assert found == rounds_of(at_once)
    assert num_drafted(found) > 10
    if shape.executor == "eager":  # a replay calls nothing
        assert num_reads < 0.7 * (len(reads) - num_reads)


def test_steps_that_are_never_read_change_drafts(models, head, monkeypatch):
    expected = rounds_of(engine_with(models, head, SHAPES["few pages"]))
    monkeypatch.setattr(PostponedSteps, "read", lambda steps, draft: steps.drop())
    assert rounds_of(engine_with(models, head, SHAPES["few pages"])) != expected


def test_a_restart_forgets_steps_that_wait(models, head):
    engine = engine_with(models, head, Shape())
    engine.add(make_submission("a", [1, 2, 3], TRACED, budget=PLAIN))
    for _ in range(4):
        engine.step()
    waiting = drafter_of(engine)._postponed
    assert waiting._numbers
    engine._runner.restart()
    assert not waiting._numbers


def test_steps_of_other_rows_are_read_apart(models, head):
    engine, reads = engine_with(models, head, Shape()), []
    none = ChunkShape(rows=0, tokens=0, width=0)
    flags = SamplingFlags()
    shape = StepShape(rows=2, tree=PLAIN, chunk=none, pages=1, sampling_flags=flags)
    plan = engine._runner._planner.null(shape)
    steps = PostponedSteps(
        lambda plan, aux, rows: reads.append((rows.tolist(), plan.queries.slots.tolist()))
    )
    for first_slot, rows in ((8, [1, 2]), (9, [1, 2]), (10, [1, 3])):
        plan.decode.rows.copy_(torch.tensor(rows))
        plan.queries.slots.copy_(torch.tensor([first_slot, first_slot + 20]))
        steps.add(plan, torch.ones(2, 1).long(), torch.zeros(2, 4), plan.draft.catch_up)
    assert reads == [([1, 2], [8, 28, 9, 29])]
    steps.read(plan.draft.catch_up)
    assert reads[1:] == [([1, 3], [10, 30])]
