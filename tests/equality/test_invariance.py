"""Draws depend on seed and position alone: not on batch, chunks, preemption, overlap or restart."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.engines import Shape, engine_of, make_submission, run_all
from support.matrix import TREES
from support.tiny import VOCAB

from outrider.runtime import build_runner
from outrider.wire.row_sampling import Penalties, RowSampling

shapes = st.builds(
    Shape,
    page_size=st.sampled_from([1, 2, 8]),
    pad=st.sampled_from([1, 3]),
    depth=st.integers(0, 1),
    step_tokens=st.integers(24, 48),
    max_rows=st.integers(1, 5),
    kv_tokens=st.integers(44, 120),  # a request needs up to 40: scarce, so rows give way
    max_context=st.just(40),
    prefix_cache=st.booleans(),
)
prompts = st.lists(
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20), min_size=1, max_size=5
)


@pytest.mark.slow
@pytest.mark.parametrize("has_penalties", [False, pytest.param(True, marks=pytest.mark.slow)])
@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    shape=shapes,
    prompts=prompts,
    seed=st.integers(0, 2**62),
    drafter=st.sampled_from(["none", "twin", "relative", "eagle3"]),
)
def test_a_request_is_answered_alike_alone_and_in_any_company(
    models, shape, prompts, seed, has_penalties, drafter
):
    base = RowSampling(seed=seed, temperature=0.9)
    penalised = replace(base, penalties=Penalties(repetition=1.3, frequency=0.4))
    sampling = penalised if has_penalties else base
    submissions = [
        make_submission(f"r{i}", prompt, replace(sampling, seed=seed + i), max_tokens=12)
        for i, prompt in enumerate(prompts)
    ]
    draft = models.draft(drafter, TREES["chain"])
    together = run_all(engine_of(models.target, shape, draft), submissions)
    for submission in submissions:
        alone = run_all(engine_of(models.target, Shape()), [submission])
        assert together[submission.request_id].tokens == alone[submission.request_id].tokens


def test_a_drafter_that_adapts_changes_its_budgets_and_no_token(models, monkeypatch):
    draft = replace(models.draft("relative", TREES["tree"]), is_adaptive=True)
    submissions = [
        make_submission(f"r{i}", [5, 9, 3 + i], RowSampling(seed=i), max_tokens=60)
        for i in range(3)
    ]
    monkeypatch.setattr(build_runner, "HOST_S", 0.0)  # dummy runs, which measure times
    engine = engine_of(models.target, Shape(depth=1), draft)
    policy = engine._scheduler._policy
    note = policy.note
    monkeypatch.setattr(policy, "note", lambda *step, **was: note(*step, **was | {"seconds": 1e-3}))
    outputs = run_all(engine, submissions)
    for submission in submissions:
        alone = run_all(engine_of(models.target, Shape()), [submission])
        assert outputs[submission.request_id].tokens == alone[submission.request_id].tokens
    rounds = [entry.last.progress for entry in outputs.values()]
    most = (TREES["tree"].nodes - 1) * sum(each.rounds for each in rounds)
    assert 0 < sum(each.drafted for each in rounds) < most  # plain rounds were tried


def test_rows_that_give_way_to_others_draft_on_as_before(models):
    scarce = Shape(kv_tokens=64, max_context=48, step_tokens=30, prefix_cache=False)
    submissions = [
        make_submission(f"r{i}", [3 * i + 1, 7, 9, 2 * i], RowSampling(seed=i), max_tokens=30)
        for i in range(4)
    ]
    engine = engine_of(models.target, scarce, models.draft("twin", TREES["chain"]))
    outputs = run_all(engine, submissions)
    progress = [entry.last.progress for entry in outputs.values()]
    assert sum(each.preemptions for each in progress)
    for submission in submissions:
        alone = run_all(engine_of(models.target, Shape()), [submission])
        assert outputs[submission.request_id].tokens == alone[submission.request_id].tokens
    # Only a last round, cut by the end of the answer, may lose drafts of a twin.
    assert all(each.drafted - each.num_accepted <= 3 for each in progress)
