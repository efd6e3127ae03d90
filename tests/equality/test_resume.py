"""A request that another engine has begun goes on with the same tokens and log-probabilities."""

import pytest
from support.engines import Shape, engine_of, make_submission, run_all
from support.matrix import PROMPTS, SAMPLINGS, TREES

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
