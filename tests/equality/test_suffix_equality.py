"""Suffix drafting in the real engine: other requests make it faster, and never change a token."""

import itertools
from dataclasses import replace

import pytest
from support.engines import Shape, engine_of, make_submission, run_all
from support.matrix import SAMPLINGS
from support.reference import decode

from outrider.runtime.draft_kinds import SuffixDraft
from outrider.wire.draft_budget import Budget

DRAFTS = {
    "chain": SuffixDraft(budget=Budget(steps=5, topk=1, nodes=6), min_match=2, max_match=4),
    "tree": SuffixDraft(budget=Budget(steps=4, topk=3, nodes=9), min_match=1, max_match=3),
}
PROMPTS = [[5, 6, 7, 8] * 5, [9, 40, 41, 42], [5, 6, 7, 8] * 3 + [5, 6, 30], [50]]
MAX_TOKENS = 14

_answers: dict[tuple[str, int], list[int]] = {}


def right_answer(models, sampling: str, index: int) -> list[int]:
    if (sampling, index) not in _answers:
        answer = decode(models.theirs, PROMPTS[index], SAMPLINGS[sampling], max_tokens=MAX_TOKENS)
        _answers[sampling, index] = answer.tokens
    return _answers[sampling, index]


def ask_all(sampling: str, *, salt="", trace=False):
    own = replace(SAMPLINGS[sampling], trace=trace)
    return [
        replace(make_submission(f"r{i}", prompt, own, max_tokens=MAX_TOKENS), cache_salt=salt)
        for i, prompt in enumerate(PROMPTS)
    ]


def num_accepted(outputs) -> int:
    return sum(entry.last.progress.num_accepted for entry in outputs.values())


def cases():
    for sampling, draft, executor, depth in itertools.product(
        SAMPLINGS, DRAFTS, ("eager", "tape"), (0, 1)
    ):
        name = f"{sampling}-{draft}-{executor}-depth{depth}"
        shape = Shape(executor=executor, depth=depth, pad=1 + 2 * depth)
        yield pytest.param(sampling, DRAFTS[draft], shape, id=name)


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(("sampling", "draft", "shape"), list(cases()))
def test_the_tokens_are_those_of_the_reference_decoder(models, sampling, draft, shape):
    engine = engine_of(models.target, shape, draft)
    for _ in range(2):  # the second time every answer is known
        outputs = run_all(engine, ask_all(sampling))
        for i in range(len(PROMPTS)):
            assert outputs[f"r{i}"].tokens == right_answer(models, sampling, i)
    assert num_accepted(outputs)


def num_rounds(engine, **how) -> int:
    """Rounds of all prompts together."""
    outputs = run_all(engine, ask_all("greedy", **how))
    return sum(entry.last.progress.rounds for entry in outputs.values())


def test_only_requests_of_the_same_salt_draft_from_an_answer(models):
    engine = engine_of(models.target, Shape(), DRAFTS["chain"])
    alone = num_rounds(engine)
    # The answers of one batch help each other only a little: most end together.
    assert num_rounds(engine) < 0.6 * alone
    mine = {"salt": "mine"}
    assert num_rounds(engine, **mine) == alone
    assert num_rounds(engine, **mine) < 0.6 * alone


def test_after_a_flush_no_request_drafts_from_earlier_answers(models):
    engine = engine_of(models.target, Shape(), DRAFTS["chain"])
    first = num_rounds(engine)
    assert num_rounds(engine) < first
    engine.flush()
    assert num_rounds(engine) == first


def test_a_traced_request_shows_no_text_of_others_unless_it_has_their_salt(models):
    engine = engine_of(models.target, Shape(), DRAFTS["chain"])
    alone = num_rounds(engine)
    assert num_rounds(engine, trace=True) == alone
    mine = {"salt": "mine", "trace": True}
    assert num_rounds(engine, **mine) == alone
    assert num_rounds(engine, **mine) < 0.6 * alone


def test_the_answer_of_an_aborted_request_is_drafted_from(models):
    engine = engine_of(models.target, Shape(), DRAFTS["chain"])
    question = ask_all("greedy")[1]
    engine.add(question)
    emitted = []
    while len(emitted) < MAX_TOKENS - 2:
        emitted += [token for update in engine.step() for token in update.tokens]
    engine.abort(question.request_id)
    again = run_all(engine, [question])["r1"]
    assert again.tokens == right_answer(models, "greedy", 1)
    assert again.last.progress.rounds < MAX_TOKENS / 2


def test_a_preempted_request_is_not_a_finished_text(models):
    scarce = Shape(kv_tokens=60, max_context=48, step_tokens=40)
    engine = engine_of(models.target, scarce, DRAFTS["tree"])
    outputs = run_all(engine, ask_all("greedy"))
    assert sum(entry.last.progress.preemptions for entry in outputs.values())
    for i in range(len(PROMPTS)):
        assert outputs[f"r{i}"].tokens == right_answer(models, "greedy", i)
