"""The n-gram drafter in the real engine: it changes how fast tokens come, never which."""

import itertools
import random
from dataclasses import replace

import pytest
from support.engines import Shape, engine_of, make_submission, run_all
from support.matrix import SAMPLINGS
from support.reference import decode

from outrider.runtime.draft_kinds import NgramDraft
from outrider.wire.draft_budget import Budget

DRAFTS = {
    "chain": NgramDraft(budget=Budget(steps=5, topk=1, nodes=6), min_match=2, max_match=4),
    "tree": NgramDraft(budget=Budget(steps=4, topk=3, nodes=9), min_match=1, max_match=3),
}
PROMPTS = [[5, 6, 7, 8] * 5, [9] * 6, [5, 6, 7, 8] * 3 + [5, 6, 30, 5, 6], [50]]
MAX_TOKENS = 14
# With three words a model repeats itself now and then, so some drafts are kept and some are not.
FEW_WORDS = tuple((token, 30.0) for token in (5, 6, 7))

_answers: dict[tuple[str, int], list[int]] = {}


def sampling_of(name: str):
    return replace(SAMPLINGS[name], bias=FEW_WORDS)


def right_answer(models, sampling: str, index: int) -> list[int]:
    if (sampling, index) not in _answers:
        answer = decode(models.theirs, PROMPTS[index], sampling_of(sampling), max_tokens=MAX_TOKENS)
        _answers[sampling, index] = answer.tokens
    return _answers[sampling, index]


def ask_all(sampling: str):
    return [
        make_submission(f"r{i}", prompt, sampling_of(sampling), max_tokens=MAX_TOKENS)
        for i, prompt in enumerate(PROMPTS)
    ]


def assert_right(models, sampling, outputs):
    for i in range(len(PROMPTS)):
        assert outputs[f"r{i}"].tokens == right_answer(models, sampling, i)


def cases():
    """Every sampling, drafter, executor and depth with each other; the sizes are drawn."""
    rng = random.Random(0)
    for sampling, draft, executor, depth in itertools.product(
        SAMPLINGS, DRAFTS, ("eager", "tape"), (0, 1)
    ):
        page, pad, chunk = rng.choice([1, 4, 16]), rng.choice([1, 3]), rng.choice([1, 7, 30])
        step_tokens = 4 * DRAFTS[draft].budget.nodes + chunk  # the trees of four rows and a chunk
        name = f"{sampling}-{draft}-{executor}-depth{depth}-page{page}-pad{pad}-chunk{chunk}"
        shape = Shape(
            executor=executor, depth=depth, page_size=page, pad=pad, step_tokens=step_tokens
        )
        yield pytest.param(sampling, DRAFTS[draft], shape, id=name)


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(("sampling", "draft", "shape"), list(cases()))
def test_the_tokens_are_those_of_the_reference_decoder(models, sampling, draft, shape):
    engine = engine_of(models.target, shape, draft)
    assert_right(models, sampling, run_all(engine, ask_all(sampling)))
    again = run_all(engine, ask_all(sampling))  # now from the prefix cache
    assert_right(models, sampling, again)
    progress = [entry.last.progress for entry in again.values()]
    assert any(each.cached for each in progress)
    assert 0 < sum(each.num_accepted for each in progress) < sum(each.drafted for each in progress)


@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)
def test_a_cached_prompt_is_as_good_to_draft_from_as_one_that_runs(models, draft):
    engine = engine_of(models.target, Shape(), draft)
    cold, hit = (run_all(engine, ask_all("greedy")) for _ in range(2))
    assert hit["r0"].last.progress.cached
    for request_id, entry in hit.items():
        assert entry.last.progress._replace(cached=0) == cold[request_id].last.progress


def test_a_preempted_request_drafts_from_all_of_its_text(models):
    scarce = Shape(kv_tokens=60, max_context=48, step_tokens=40)
    outputs = run_all(engine_of(models.target, scarce, DRAFTS["chain"]), ask_all("greedy"))
    assert sum(entry.last.progress.preemptions for entry in outputs.values())
    assert_right(models, "greedy", outputs)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)
def test_a_text_that_loops_is_drafted_completely(models, draft, depth):
    stuck = replace(SAMPLINGS["greedy"], bias=((5, 1000.0),))
    engine = engine_of(models.target, Shape(depth=depth), draft)
    steps = draft.budget.steps
    outputs = run_all(engine, [make_submission("r", [5] * 6, stuck, max_tokens=8 * (steps + 1))])[
        "r"
    ]
    assert outputs.tokens == [5] * (8 * (steps + 1))
    progress = outputs.last.progress
    assert len(progress.accepted_per_depth) == steps  # the pace reached the whole budget
    # A loop is one path: a tree's other branches are not kept, its deepest one is.
    assert progress.accepted_per_depth[0] == progress.rounds


def test_requests_may_draft_less_or_nothing_beside_others_that_draft(models):
    tree = DRAFTS["tree"]
    engine = engine_of(models.target, Shape(pad=3), tree)
    budgets = [Budget(), Budget(steps=2, topk=1, nodes=3), tree.budget, tree.budget]
    submissions = [
        replace(submission, budget=budget)
        for submission, budget in zip(ask_all("greedy"), budgets, strict=True)
    ]
    outputs = run_all(engine, submissions)
    assert_right(models, "greedy", outputs)
    assert outputs["r0"].last.progress.drafted == 0
    assert len(outputs["r1"].last.progress.accepted_per_depth) <= 2
    assert outputs["r2"].last.progress.num_accepted > 0
