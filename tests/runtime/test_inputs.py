"""What the host sent for a step stays as it was sent: the next step may go without sending it."""

import pytest
import torch
from support.engines import Shape, engine_of, make_submission
from support.matrix import TREES, sampling_of

from outrider.runtime.draft_kinds import NgramDraft


def draft_of(models, name):
    if name == "ngram":
        return NgramDraft(budget=TREES["tree"], min_match=1, max_match=3)
    return models.draft(name, TREES["chain" if name == "modules" else "tree"])


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("executor", ["eager", "tape"])
@pytest.mark.parametrize("drafter", ["none", "relative", "eagle3", "modules", "ngram"])
def test_no_step_writes_its_inputs(models, drafter, executor, monkeypatch):
    shape = Shape(pad=3, max_rows=3, step_tokens=16, executor=executor)
    engine = engine_of(models.target, shape, draft_of(models, drafter))
    planner = engine._runner._planner
    plan_of, inputs, sent = planner.plan, planner._arena._buffers["inputs"], []

    def plan_and_note(batch, **how):
        plan = plan_of(batch, **how)
        sent.append(inputs.clone())
        return plan

    monkeypatch.setattr(planner, "plan", plan_and_note)
    for index in range(3):
        prompt = [3 + index, 4, 5, 3, 4, 5, 6] * (1 + 2 * index)
        engine.add(
            make_submission(f"r{index}", prompt, sampling_of("sampled", index), max_tokens=12)
        )
    while engine.has_work:
        engine.step()
        assert torch.equal(inputs, sent[-1])
    assert len(sent) > 5
