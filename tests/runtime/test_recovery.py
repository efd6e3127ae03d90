"""A real runner after a failed step: its requests end with the reason, the others go on."""

import pytest
import torch
from support.engines import Shape, engine_of, make_submission, run_all
from support.faults import Fault, break_steps
from support.matrix import TREES, sampling_of
from support.recovery import check_recovery, failed

from outrider.errors import CapacityError
from outrider.runtime.draft_kinds import NgramDraft
from outrider.spec.model_drafter import ModelDrafter
from outrider.step.device_stream import HostEvent


def draft_of(models, name):
    if name == "ngram":
        return NgramDraft(budget=TREES["tree"], min_match=1, max_match=3)
    return models.draft(name, TREES["chain"])


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("drafter", ["none", "relative", "eagle3", "modules", "ngram"])
@pytest.mark.parametrize("where", ["at_submit", "at_wait"])
def test_the_others_get_the_tokens_they_would_have_had(models, depth, drafter, where):
    shape = Shape(depth=depth, pad=3, max_rows=2)  # padding reads pages that were never written
    engine, outputs = check_recovery(models, shape, draft_of(models, drafter), **{where: {4}})
    assert failed(outputs) == ["r0", "r1"]
    reason = outputs["r0"].last.reason
    assert reason.startswith("a step failed with Fault: the step broke ")
    assert engine.num_drafter_failures == 0


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.slow
def test_failures_may_repeat(models, depth):
    shape = Shape(depth=depth, pad=3, max_rows=2)
    draft = models.draft("relative", TREES["tree"])
    _, outputs = check_recovery(models, shape, draft, at_submit={1, 9}, at_wait={5})
    assert 4 <= len(failed(outputs)) <= 6


@pytest.mark.slow
@pytest.mark.parametrize("where", ["at_submit", "at_wait"])
def test_a_tape_is_replayed_after_a_failure(models, where):
    shape = Shape(depth=1, pad=4, max_rows=2, executor="tape")
    check_recovery(models, shape, models.draft("eagle", TREES["chain"]), **{where: {4, 8}})


def test_a_short_prompt_goes_on_when_a_long_one_breaks_each_of_its_steps(models, monkeypatch):
    run, sampling = models.target.forward, sampling_of("greedy", 0)
    engine = engine_of(models.target, Shape(max_rows=1))

    def run_short(plan, *others):
        if plan.shape.chunk.tokens > 9:
            raise Fault("such prompts never work")
        return run(plan, *others)

    monkeypatch.setattr(models.target, "forward", run_short)
    long, short = (
        make_submission("long", [5] * 10, sampling),
        make_submission("short", [5] * 4, sampling),
    )
    outputs = run_all(engine, [long, short])
    assert (outputs["long"].last.finish, outputs["short"].last.finish) == ("error", "length")
    assert engine.num_failed_steps == 1


def test_a_device_that_does_not_answer_any_more_stops_the_engine(models, monkeypatch):
    def lose(mark):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    engine, sampling = engine_of(models.target, Shape(max_rows=1)), sampling_of("greedy", 0)
    engine.add(make_submission("runs", [3, 4], sampling))
    engine.add(make_submission("waits", [3, 4], sampling))
    (first,) = engine.step()
    assert (first.finish, len(first.tokens)) == ("running", 1)
    monkeypatch.setattr(HostEvent, "wait", lose)  # an error of CUDA stays
    updates = engine.step()
    assert [(each.request_id, each.finish) for each in updates] == [
        ("runs", "error"),
        ("waits", "error"),
    ]
    with pytest.raises(CapacityError, match="restart the process"):
        engine.add(make_submission("later", [3, 4], sampling))


def test_a_restarted_runner_holds_no_row_and_no_broken_number(models):
    engine = engine_of(models.target, Shape(pad=3))
    break_steps(engine, at_submit={2})
    run_all(engine, [make_submission("a", [3, 4, 5], sampling_of("sampled", 0))])
    state = engine._runner._program.state
    assert torch.isfinite(state.kv.storage).all()
    assert not state.rows.pages.any()
    assert not state.rows.lengths.any()
    assert engine._runner._samplings._samplings == {}


def memory_of(engine):
    """What a drafter remembers of its rows."""
    drafter = engine._runner._program.drafter._drafter
    return (
        drafter._hidden_states
        if isinstance(drafter, ModelDrafter)
        else drafter._pairs.pairs.aux_hidden_states
    )


@pytest.mark.parametrize("drafter", ["relative", "eagle3", "modules"])
def test_a_restarted_drafter_remembers_no_broken_number(models, drafter):
    engine = engine_of(models.target, Shape(pad=3), models.draft(drafter, TREES["chain"]))
    break_steps(engine, at_submit={2})
    run_all(engine, [make_submission("a", [3, 4, 5], sampling_of("sampled", 0))])
    assert not memory_of(engine).any()


def test_what_a_former_owner_left_is_not_written_to_draft_kv(models):
    """A new row's window has idle places only, and page 0, to which they write, is read masked."""
    sampling = sampling_of("greedy", 0)
    engine = engine_of(models.target, Shape(), models.draft("modules", TREES["chain"]))
    memory_of(engine).fill_(float("nan"))
    run_all(
        engine,
        [make_submission("long", [5] * 13, sampling), make_submission("short", [3] * 8, sampling)],
    )
    _, drafts = engine._runner._program.state.pages._pools
    assert torch.isfinite(drafts.storage).all()
