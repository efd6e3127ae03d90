"""A request that another engine has begun goes on with the same tokens and log-probabilities."""

from dataclasses import replace

import pytest
from support.engines import Shape, engine_of, make_submission, run_all
from support.matrix import PROMPTS, SAMPLINGS, TREES

from outrider.wire.row_sampling import LogprobsWanted, PromptLogprobs

MAX_TOKENS = 12


def rest_of(engine, submission, emitted):
    engine.add(submission, tuple(emitted))
    return run_all(engine, [])[submission.request_id]


@pytest.mark.parametrize("drafter", ["none", "relative"])
@pytest.mark.parametrize("sampling", list(SAMPLINGS))
def test_the_rest_of_an_answer_is_the_same(models, sampling, drafter):
    def engine():
        return engine_of(models.target, Shape(depth=1), models.draft(drafter, TREES["tree"]))

    submission = make_submission("a", PROMPTS[0], SAMPLINGS[sampling], max_tokens=MAX_TOKENS)
    whole = run_all(engine(), [submission])["a"]
    for cut in (1, 5, MAX_TOKENS - 1):
        rest = rest_of(engine(), submission, whole.tokens[:cut])
        assert rest.tokens == whole.tokens[cut:]
        assert rest.logprobs == pytest.approx(whole.logprobs[cut:], abs=1e-4)
        assert rest.last.finish == whole.last.finish == "length"


def updates_of(engine, submission, emitted=()):
    engine.add(submission, tuple(emitted))
    updates = []
    while engine.has_work:
        updates += engine.step()
    return updates


def test_scores_of_the_prompt_are_not_reported_again(models):
    wanted = LogprobsWanted(chosen=True, top=1, prompt=PromptLogprobs(is_wanted=True, first=1))
    sampling = replace(SAMPLINGS["greedy"], logprobs=wanted)
    submission = make_submission("a", PROMPTS[0], sampling, max_tokens=MAX_TOKENS)
    whole = updates_of(engine_of(models.target, Shape()), submission)
    assert sum(len(each.prompt_logprobs) for each in whole) == len(PROMPTS[0]) - 1
    tokens = [token for each in whole for token in each.tokens]
    rest = updates_of(engine_of(models.target, Shape()), submission, tokens[:4])
    assert sum(len(each.prompt_logprobs) for each in rest) == 0
    assert [token for each in rest for token in each.tokens] == tokens[4:]
