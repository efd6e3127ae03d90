"""A matcher process that takes too long ends: its request fails, and the others continue."""

import gc
import os
import signal
import time

import pytest
from support.engines import Shape, engine_of, make_submission, run_all
from support.processes import is_running, wait_for_end
from support.tiny_vocabulary import AMBIGUOUS, END, HIDDEN, RUNS, VOCAB

from outrider.errors import RequestError
from outrider.runtime.draft_kinds import NgramDraft
from outrider.structured import loaded_grammar, match_rows, matcher_pool
from outrider.structured.grammar_cache import GrammarCache
from outrider.structured.matcher_process import TOO_SLOW
from outrider.wire.draft_budget import Budget
from outrider.wire.failure import FailureKind
from outrider.wire.grammar_spec import Grammar, GrammarSpec
from outrider.wire.row_sampling import RowSampling

pytest.importorskip("xgrammar")

LONG_S = 20.0  # nothing here takes so long unless it is broken; the matcher would take minutes
TOKENS = {piece: token for token, piece in enumerate(RUNS.pieces)}
DIGITS = GrammarSpec(kind="regex", text="[0-9]+")


@pytest.fixture(scope="module")
def grammar_cache():
    cache = GrammarCache(lambda: RUNS, vocab_size=VOCAB)
    yield cache
    cache.close()


def submission(name, spec, *wanted, max_tokens=24):
    """A request whose answer is drawn to some tokens."""
    bias = tuple((TOKENS[piece], 100.0) for piece in wanted)
    sampling = RowSampling(seed=3, bias=bias, grammar=Grammar(spec=spec, ends=(END,)))
    return make_submission(name, [7, 3, 7, 3], sampling, max_tokens=max_tokens, stop_ids=(END,))


STUCK = submission("stuck", HIDDEN, b"abc", b"12", b"x", b"m" * 64)
OTHERS = [
    submission("same grammar", HIDDEN, b"bc", b"yz"),
    submission("digits", DIGITS),
    make_submission("free", [5, 6], RowSampling(seed=1), max_tokens=40),
]


def engine_with(models, grammar_cache, depth=1, **sizes):
    draft = NgramDraft(budget=Budget(steps=3, topk=1, nodes=4), min_match=1, max_match=3)
    return engine_of(models.target, Shape(depth=depth, **sizes), draft, grammar_cache)


def tokens_of(outputs):
    return {name: output.tokens for name, output in outputs.items()}


def loaded_of(engine, spec):
    return engine._runner.grammars.loaded(spec)


@pytest.mark.slow
def test_a_slow_branch_behind_a_rare_first_token_is_refused(grammar_cache):
    slow = f'root ::= "b" s | [^b] [^b]*\n{AMBIGUOUS}'
    with pytest.raises(RequestError, match=r"too ambiguous|too complex"):
        grammar_cache.check(GrammarSpec(kind="ebnf", text=slow))
    grammar_cache.check(GrammarSpec(kind="ebnf", text='root ::= "b" "m"* | [^b] [^b]*'))


@pytest.mark.slow
@pytest.mark.parametrize("depth", [0, 1])
def test_a_matcher_that_does_not_return_ends_its_request_alone(models, grammar_cache, depth):
    """xgrammar takes minutes for one token here. Another row has the same grammar."""
    expected = tokens_of(run_all(engine_with(models, grammar_cache, depth), OTHERS))
    engine, began_s = engine_with(models, grammar_cache, depth), time.monotonic()
    outputs = run_all(engine, [STUCK, *OTHERS])
    assert time.monotonic() - began_s < LONG_S
    stuck = outputs.pop("stuck")
    assert stuck.last.finish == "error"
    assert stuck.last.failure == TOO_SLOW
    assert stuck.last.failure.kind is FailureKind.REQUEST
    assert [RUNS.pieces[token] for token in stuck.tokens[:3]] == [b"abc", b"12", b"x"]
    assert tokens_of(outputs) == expected
    assert engine.num_failed_steps == 0
    assert tokens_of(run_all(engine, OTHERS)) == expected


@pytest.mark.slow
def test_several_such_requests_end_in_one_step(models, grammar_cache):
    stuck = [
        make_submission(f"stuck {i}", STUCK.prompt, STUCK.sampling, max_tokens=9) for i in range(3)
    ]
    expected = tokens_of(run_all(engine_with(models, grammar_cache), OTHERS[:1]))
    outputs = run_all(engine_with(models, grammar_cache), [*stuck, OTHERS[0]])
    assert {outputs[each.request_id].last.finish for each in stuck} == {"error"}
    assert outputs["same grammar"].tokens == expected["same grammar"]


@pytest.mark.slow
def test_a_grammar_that_is_a_little_slow_in_every_step_ends_its_request(models, grammar_cache):
    """Each step is within its limit, but the steps together are not."""
    crawl = submission("crawl", HIDDEN, b"abc", b"12", b"x", b"m", max_tokens=120)
    output = run_all(engine_with(models, grammar_cache, max_context=160), [crawl])["crawl"]
    assert output.last.finish == "error"
    assert 20 < len(output.tokens) < 120


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.slow
def test_a_process_that_is_lost_between_steps_is_replaced(
    models, grammar_cache, monkeypatch, number
):
    expected = tokens_of(run_all(engine_with(models, grammar_cache), OTHERS))
    monkeypatch.setattr(loaded_grammar, "ANSWER_TIMEOUT_S", 0.5)
    engine = engine_with(models, grammar_cache)
    for each in OTHERS:
        engine.add(each)
    tokens = {each.request_id: [] for each in OTHERS}
    lost = []
    while engine.has_work:
        for update in engine.step():
            tokens[update.request_id] += update.tokens
        if 4 * len(lost) < len(tokens["same grammar"]) < 12:
            lost.append(loaded_of(engine, HIDDEN).pid)
            os.kill(lost[-1], number)
    assert tokens == expected
    assert len(set(lost)) > 1
    assert engine.num_failed_steps == 0


@pytest.mark.slow
def test_a_process_that_cannot_be_replaced_ends_the_requests_of_its_grammar(
    models, grammar_cache, monkeypatch
):
    monkeypatch.setattr(loaded_grammar, "MAX_RELOAD_S", 0.0)
    outputs = run_all(engine_with(models, grammar_cache), [STUCK, *OTHERS])
    assert outputs["same grammar"].last.failure == match_rows.LOST
    assert [outputs[each].last.finish for each in ("digits", "free")] == ["stop", "length"]


def test_a_process_ends_when_its_engine_is_dropped(models, grammar_cache):
    engine = engine_with(models, grammar_cache)
    run_all(engine, OTHERS[1:2])
    pid = loaded_of(engine, DIGITS).pid
    assert is_running(pid)
    del engine
    gc.collect()
    wait_for_end(pid)


def test_a_process_is_not_idle_while_a_row_with_its_grammar_prefills(
    models, grammar_cache, monkeypatch
):
    monkeypatch.setattr(matcher_pool, "IDLE_S", -1.0)  # all that no row holds is closed at once
    monkeypatch.setattr(matcher_pool, "MAX_IDLE", 0)
    engine = engine_with(models, grammar_cache, step_tokens=8)
    grammar = RowSampling(seed=3, grammar=Grammar(spec=DIGITS, ends=(END,)))
    engine.add(make_submission("long", [5] * 60, grammar, max_tokens=2))
    engine._runner.grammars.compile(DIGITS).result()
    engine.step()
    engine.step()
    pool = engine._runner.grammars
    held = pool.loaded(DIGITS)
    pool.compile(HIDDEN).result()
    assert held.pid  # in the middle of the prefill
    while engine.has_work:
        engine.step()
    run_all(engine, OTHERS[2:])  # a step without the row: its request has ended
    pool.compile(GrammarSpec(kind="regex", text="[0-9]")).result()
    assert not held.pid
