"""Predicted outputs: an answer that resembles its prediction comes faster, and is the same."""

from dataclasses import replace

import pytest
from support.engines import Shape, engine_of, make_submission, run_all
from support.matrix import SAMPLINGS
from support.reference import decode

from outrider.runtime.draft_kinds import NgramDraft
from outrider.wire.draft_budget import Budget

CHAIN = NgramDraft(budget=Budget(steps=5, topk=1, nodes=6), min_match=2, max_match=4)
TREE = NgramDraft(budget=Budget(steps=4, topk=3, nodes=9), min_match=1, max_match=3)
PROMPTS = [[50, 4, 66, 12, 9], [33, 21, 40], [13]]
MAX_TOKENS = 18


def right_answers(models, sampling):
    return [
        decode(models.theirs, prompt, sampling, max_tokens=MAX_TOKENS).tokens for prompt in PROMPTS
    ]


def run(models, shape, draft, sampling, predictions):
    submissions = [
        make_submission(
            f"r{i}", prompt, replace(sampling, prediction=tuple(predictions[i])), max_tokens=18
        )
        for i, prompt in enumerate(PROMPTS)
    ]
    outputs = run_all(engine_of(models.target, shape, draft), submissions)
    return [outputs[f"r{i}"] for i in range(len(PROMPTS))]


@pytest.mark.parametrize("name", ["greedy", "warped", "restricted"])
@pytest.mark.parametrize("draft", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("shape", [Shape(), Shape(executor="tape", depth=1, pad=3)], ids=["e", "t"])
@pytest.mark.fast_cases(3)
def test_a_prediction_changes_no_token_whether_it_is_right_or_wrong(models, name, draft, shape):
    right = right_answers(models, SAMPLINGS[name])
    edited = [[*answer[:6], 3, *answer[7:]] for answer in right]
    for predictions in (right, edited, right[::-1], [[], right[1], []]):
        outputs = run(models, shape, draft, SAMPLINGS[name], predictions)
        assert [output.tokens for output in outputs] == right


def test_a_right_prediction_is_accepted_from_its_begin(models):
    right = right_answers(models, SAMPLINGS["greedy"])
    with_it = run(models, Shape(), CHAIN, SAMPLINGS["greedy"], right)
    without = run(models, Shape(), CHAIN, SAMPLINGS["greedy"], [[], [], []])
    for output, plain in zip(with_it, without, strict=True):
        assert output.last.progress.accepted_per_depth[0] == output.last.progress.rounds
        assert output.last.progress.rounds < plain.last.progress.rounds


def test_drafting_goes_on_after_an_edit(models):
    right = right_answers(models, SAMPLINGS["greedy"])
    edited = [[*answer[:5], 3, *answer[6:]] for answer in right]
    outputs = run(models, Shape(), CHAIN, SAMPLINGS["greedy"], edited)
    without = run(models, Shape(), CHAIN, SAMPLINGS["greedy"], [[], [], []])
    gained = [
        output.last.progress.num_accepted - plain.last.progress.num_accepted
        for output, plain in zip(outputs, without, strict=True)
    ]
    assert sum(gained) > 2 * 5 * len(PROMPTS) - 10  # before the edit, and after it again


def test_a_prediction_longer_than_the_table_is_cut(models):
    right = right_answers(models, SAMPLINGS["greedy"])
    long = [answer + [3] * 9000 for answer in right]
    outputs = run(models, Shape(), CHAIN, SAMPLINGS["greedy"], long)
    assert [output.tokens for output in outputs] == right
    assert outputs[0].last.progress.num_accepted > 5
