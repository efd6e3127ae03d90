"""What a request does not use changes none of its bits, even if it is NaN or infinite."""

from dataclasses import replace

import pytest
from support.bad_tokens import assert_ends_as_plain_decoding, with_bad_tokens
from support.engines import Shape, engine_of, make_submission, run_all
from support.matrix import MAX_TOKENS, PROMPTS, TREES, sampling_of
from support.poison import DRAFTS, POISONS, answers
from support.tiny import VOCAB

from outrider.ops.sampling.sample_token import NOT_FINITE, NOTHING_LEFT
from outrider.runtime.row_errors import FAILURES
from outrider.wire.row_sampling import Ban

BAD = 66  # a token whose embedding is NaN, in tests with a broken model


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("value", POISONS)
@pytest.mark.parametrize("draft", DRAFTS, ids="-".join)
@pytest.mark.parametrize("executor", ["eager", "tape"])
@pytest.mark.parametrize("target", ["llama", "deepseek-v3"])
def test_unused_memory_never_reaches_an_answer(targets, target, executor, draft, value):
    models, shape = targets[target], Shape(executor=executor)
    assert answers(models, draft, shape, value) == answers(models, draft, shape)


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


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("tree", ["chain", "tree"])
def test_a_drafter_that_computes_nan_changes_no_token(targets, tree):
    models, budget = targets["llama"], TREES[tree]
    shape = Shape(step_tokens=4 * budget.nodes + 7)
    asked = [
        make_submission(f"r{i}", prompt, sampling_of("sampled", i), max_tokens=MAX_TOKENS)
        for i, prompt in enumerate(PROMPTS)
    ]
    right = run_all(engine_of(models.target, shape), asked)
    broken = replace(models, relative=with_bad_tokens(models.relative, list(range(0, VOCAB, 2))))
    got = run_all(engine_of(models.target, shape, broken.draft("relative", budget)), asked)
    assert {name: each.tokens for name, each in got.items()} == {
        name: each.tokens for name, each in right.items()
    }


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("draft", [*DRAFTS, ("twin", "tree")], ids="-".join)
@pytest.mark.parametrize("target", ["llama", "deepseek-v3"])
def test_a_bad_token_ends_its_request_where_plain_decoding_ends_it(targets, target, draft, depth):
    assert_ends_as_plain_decoding(targets[target], draft, Shape(depth=depth))


def test_a_request_that_ends_before_the_bad_numbers_does_not_fail(targets):
    models = targets["llama"]
    text = PROMPTS[0]
    asked = make_submission("r", text, sampling_of("greedy", 0))
    right = run_all(engine_of(models.target, Shape()), [asked])["r"].tokens
    bad = next(token for token in right[1:] if token not in [*text, right[0]])
    num_tokens = right.index(bad) + 1
    engine = engine_of(
        with_bad_tokens(models.target, [bad]), Shape(), models.draft("twin", TREES["chain"])
    )
    stopped = make_submission("s", text, sampling_of("greedy", 0), stop_ids=(bad,))
    short = make_submission("t", text, sampling_of("greedy", 0), max_tokens=num_tokens)
    got = run_all(engine, [stopped, short])
    assert [got[name].last.finish for name in "st"] == ["stop", "length"]
    assert [got[name].tokens for name in "st"] == [right[:num_tokens]] * 2


def test_a_bad_prompt_fails_whether_it_is_answered_or_only_read(targets):
    engine = engine_of(with_bad_tokens(targets["llama"].target, [BAD]), Shape(step_tokens=7))
    for num_tokens in (0, 5):
        text = [BAD, *PROMPTS[0]]
        asked = make_submission("r", text, sampling_of("greedy", 0), max_tokens=num_tokens)
        got = run_all(engine, [asked])["r"]
        assert (got.tokens, got.last.finish) == ([], "error")
        assert got.last.failure == FAILURES[NOT_FINITE]
    assert engine._scheduler.cache._tree.num_evictable == 0, "failed requests leave no pages"


@pytest.mark.parametrize("depth", [0, 1])
def test_a_bad_prompt_fails_before_the_rest_of_it_is_computed(targets, depth):
    broken = with_bad_tokens(targets["llama"].target, [BAD])
    engine = engine_of(broken, Shape(step_tokens=7, depth=depth))
    engine.add(make_submission("r", [BAD, *PROMPTS[0] * 5], sampling_of("greedy", 0)))
    updates = [update for _ in range(1 + depth) for update in engine.step()]
    assert [update.failure for update in updates] == [FAILURES[NOT_FINITE]]
    assert engine._scheduler.cache._tree.num_evictable == 0


def test_a_bad_prompt_that_is_aborted_leaves_no_pages_and_others_keep_theirs(targets):
    broken = with_bad_tokens(targets["llama"].target, [BAD])
    engine = engine_of(broken, Shape(step_tokens=len(PROMPTS[0]) * 4 + 8, depth=1))
    text = list(PROMPTS[0]) * 2
    good = make_submission("good", text, sampling_of("greedy", 0), max_tokens=2)
    run_all(engine, [good])
    num_cached = engine._scheduler.cache._tree.num_evictable
    assert num_cached > 0
    engine.add(make_submission("r", [*text, *[BAD] * 20], sampling_of("greedy", 0)))
    engine.step()  # its result is not read yet
    engine.abort("r")
    assert engine._scheduler.cache._tree.num_evictable > num_cached
    run_all(engine, [good])
    assert engine._scheduler.cache._tree.num_evictable == num_cached


def test_a_request_fails_if_its_restrictions_leave_no_token(targets):
    engine = engine_of(targets["llama"].target, Shape())
    asked = make_submission("r", PROMPTS[0], sampling_of("greedy", 0), max_tokens=4)
    good = run_all(engine, [asked])["r"]
    ban = replace(sampling_of("greedy", 0), ban=Ban(before=1000, tokens=tuple(range(VOCAB))))
    both = run_all(engine, [asked, make_submission("n", PROMPTS[3], ban)])
    assert (both["n"].tokens, both["n"].last.failure) == ([], FAILURES[NOTHING_LEFT])
    assert both["r"].tokens == good.tokens


@pytest.mark.parametrize("is_bad", [True, False])
def test_a_failed_request_leaves_the_pages_of_others_in_the_cache(targets, is_bad):
    engine = engine_of(with_bad_tokens(targets["llama"].target, [BAD]), Shape())
    text = list(PROMPTS[0]) * 2
    good = make_submission("good", text, sampling_of("greedy", 0), max_tokens=1)
    run_all(engine, [good])
    cached = run_all(engine, [good])["good"].last.progress.cached
    ban = replace(sampling_of("greedy", 0), ban=Ban(before=1000, tokens=tuple(range(VOCAB))))
    sampling = sampling_of("greedy", 0) if is_bad else ban
    failing = make_submission("f", [*text, *([BAD] * 8 if is_bad else text)], sampling)
    failed, again = (run_all(engine, [failing])["f"].last for _ in range(2))
    assert failed.failure == again.failure == FAILURES[NOT_FINITE if is_bad else NOTHING_LEFT]
    assert (again.progress.cached > cached) == (not is_bad)  # finite numbers can be used again
    assert run_all(engine, [good])["good"].last.progress.cached == cached > 0


def test_a_bad_prompt_does_not_reach_the_requests_after_it(targets):
    models = targets["llama"]
    broken = with_bad_tokens(models.target, [BAD])
    engine = engine_of(broken, Shape(max_rows=2, kv_tokens=64, prefix_cache=False))
    good = make_submission("good", PROMPTS[3], sampling_of("greedy", 0), max_tokens=MAX_TOKENS)
    right = run_all(engine, [good])["good"].tokens
    bad = [make_submission(f"b{i}", [BAD] * 30, sampling_of("greedy", 0)) for i in range(3)]
    assert run_all(engine, [*bad, good])["good"].tokens == right
    assert run_all(engine, [good])["good"].tokens == right
