"""What a request does not use changes none of its bits, even if it is NaN or infinite."""

import math
from dataclasses import replace

import pytest
from support.engines import Shape, engine_of, make_submission, run_all
from support.matrix import MAX_TOKENS, PROMPTS, TREES, sampling_of
from support.poison import DRAFTS, POISONS, answers
from support.tiny import VOCAB

from outrider.models.decoder import Decoder

BAD = 66  # a token whose embedding is NaN, in tests with a broken model


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("value", POISONS)
@pytest.mark.parametrize("draft", DRAFTS, ids="-".join)
@pytest.mark.parametrize("target", ["llama", "deepseek-v3"])
def test_unused_memory_never_reaches_an_answer(targets, target, draft, value):
    models = targets[target]
    assert answers(models, draft, Shape(), value) == answers(models, draft, Shape())


def with_bad_tokens(decoder, tokens):
    """The same model with embeddings of NaN; most weights are shared."""
    embedding = decoder.embedding.clone()
    embedding[tokens] = math.nan
    return Decoder(decoder.config, replace(decoder._parts, embedding=embedding))


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("executor", ["eager", "tape"])
@pytest.mark.parametrize("tree", ["chain", "tree", "wide"])
@pytest.mark.parametrize("target", ["llama", "deepseek-v3"])
def test_drafts_of_bad_tokens_change_no_token_and_no_logprob(targets, target, tree, executor):
    """The drafter is the model before its embeddings broke, so it drafts what is bad now."""
    models, budget = targets[target], TREES[tree]
    asked = [
        make_submission(f"r{i}", prompt, sampling_of("greedy", i), max_tokens=MAX_TOKENS)
        for i, prompt in enumerate(PROMPTS)
    ]
    shape = Shape(step_tokens=4 * budget.nodes + 7, executor=executor)
    plain = run_all(engine_of(models.target, shape), asked)
    said = {token for prompt in PROMPTS for token in prompt}
    said |= {token for each in plain.values() for token in each.tokens}
    broken = with_bad_tokens(models.target, [t for t in range(VOCAB) if t not in said])
    engine = engine_of(broken, shape, models.draft("relative", budget))
    drafted = run_all(engine, asked)
    assert all(each.last.progress.drafted for each in drafted.values())
    for name, right in plain.items():
        assert drafted[name].tokens == right.tokens
        assert drafted[name].logprobs == pytest.approx(right.logprobs, abs=1e-4)


def test_a_bad_prompt_does_not_reach_the_requests_after_it(targets):
    models = targets["llama"]
    broken = with_bad_tokens(models.target, [BAD])
    engine = engine_of(broken, Shape(max_rows=2, kv_tokens=64, prefix_cache=False))
    good = make_submission("good", PROMPTS[3], sampling_of("greedy", 0), max_tokens=MAX_TOKENS)
    right = run_all(engine, [good])["good"].tokens
    bad = [make_submission(f"b{i}", [BAD] * 30, sampling_of("greedy", 0)) for i in range(3)]
    assert run_all(engine, [*bad, good])["good"].tokens == right
    assert run_all(engine, [good])["good"].tokens == right
