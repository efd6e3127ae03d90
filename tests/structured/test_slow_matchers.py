"""A matcher that does not return is left behind: its request ends, and the others continue."""

import threading
import time

import pytest
import torch
from support.engines import Shape, engine_of, make_submission, run_all
from support.grammars import END, SPECS, TINY
from support.tiny import VOCAB

from outrider.errors import RequestError
from outrider.structured import row_grammars
from outrider.structured.grammar_cache import GrammarCache
from outrider.structured.grammar_compiler import describe_vocabulary
from outrider.structured.matcher_thread import MatcherTask, MatcherThread
from outrider.wire.grammar_spec import Grammar, GrammarSpec, Vocabulary
from outrider.wire.row_sampling import RowSampling

xgrammar = pytest.importorskip("xgrammar")

LONG_S = 60.0  # nothing here takes so long unless it is broken
AMBIGUOUS = '| s s s s s s | s s s s s | s s s s | s s s | s s | "#" | ""'
HIDDEN = f'root ::= "y" s | [^y] [^y]*\ns ::= "#" {AMBIGUOUS}\n'
RUNS = Vocabulary(
    pieces=(*[bytes([i]) for i in range(256)], *[b"#" * size for size in (4, 16, 64)], b"")
)


def wait_until(happens):
    deadline_s = time.monotonic() + LONG_S
    while not happens():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def spin_until(event):
    while not event.is_set():
        pass


def test_a_slow_branch_behind_a_rare_first_token_is_refused():
    cache = GrammarCache(lambda: RUNS, vocab_size=len(RUNS.pieces))
    try:
        with pytest.raises(RequestError, match=r"too ambiguous|too complex"):
            cache.check(GrammarSpec(kind="ebnf", text=HIDDEN))
        cache.check(GrammarSpec(kind="ebnf", text='root ::= "y" "#"* | [^y] [^y]*'))
    finally:
        cache.close()


def test_a_step_goes_on_without_a_matcher_that_does_not_return():
    """xgrammar itself takes seconds here, for one token."""
    info = describe_vocabulary(RUNS)
    compiled = xgrammar.GrammarCompiler(info, max_threads=1).compile_grammar(HIDDEN)
    matcher = xgrammar.GrammarMatcher(compiled, override_stop_tokens=[len(RUNS.pieces) - 1])
    matcher.accept_token(ord("y"))
    run_of_64, thread, done = 258, MatcherThread(), []
    tasks = [
        MatcherTask(lambda _: done.append("before"), slice(0, 0), lambda: 0.1),
        MatcherTask(lambda _: matcher.accept_token(run_of_64), slice(0, 0), lambda: 0.1),
        MatcherTask(lambda _: done.append("after"), slice(0, 0), lambda: 0.1),
    ]
    masks, began_s = torch.zeros((1, 1), dtype=torch.int32), time.process_time()
    assert thread.run(tasks, masks) == 1
    assert time.process_time() - began_s < 0.5
    assert thread.num_left_behind == 1
    assert thread.run(tasks[2:], masks) == 1
    assert done == ["before", "after"]
    wait_until(lambda: thread.num_left_behind == 0)  # the end of a test must not meet it
    assert done == ["before", "after"]  # what came after it was not run twice


def test_an_error_of_a_task_reaches_the_step_and_the_thread_goes_on():
    def fail(masks):
        raise ValueError("a mistake")

    thread, masks = MatcherThread(), torch.zeros((1, 1), dtype=torch.int32)
    with pytest.raises(ValueError, match="a mistake"):
        thread.run([MatcherTask(fail, slice(0, 0), lambda: 0.1)], masks)
    assert thread.run([MatcherTask(torch.Tensor.zero_, slice(0, 1), lambda: 0.1)], masks) == 1


def test_a_thread_ends_when_its_owner_is_dropped():
    thread = MatcherThread()
    inner = thread._current
    del thread
    wait_until(lambda: not inner.is_alive)


@pytest.fixture(scope="module")
def grammar_cache():
    cache = GrammarCache(lambda: TINY, vocab_size=VOCAB)
    yield cache
    cache.close()


def submission(name, kind, max_tokens=12):
    grammar = Grammar(spec=SPECS[kind], ends=(END,))
    sampling = RowSampling(seed=3, grammar=grammar)
    return make_submission(name, [7, 3], sampling, max_tokens=max_tokens, stop_ids=(END,))


def hang_on_json(monkeypatch, released):
    """The matcher of the JSON grammar does not return; once it does, it writes to its masks."""
    original = row_grammars.mask_tree

    def hang(state, tokens, parents, bits, first):
        original(state, tokens, parents, bits, first)
        if bits[first, 0] & 8:  # only the JSON grammar begins with a brace
            spin_until(released)
            bits.zero_()

    monkeypatch.setattr(row_grammars, "mask_tree", hang)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [0, 1])
def test_a_matcher_that_hangs_ends_its_request_alone(models, grammar_cache, monkeypatch, depth):
    shape = Shape(depth=depth)
    others = [submission("regex", "regex"), submission("choice", "choice")]
    expected = run_all(engine_of(models.target, shape, grammars=grammar_cache), others)
    released = threading.Event()
    hang_on_json(monkeypatch, released)
    engine = engine_of(models.target, shape, grammars=grammar_cache)
    try:
        first = run_all(engine, [others[0], submission("json", "json"), others[1]])
        thread = engine._runner._program.state.grammars._thread
        assert thread.num_left_behind == 1
        monkeypatch.setattr(row_grammars, "MAX_LEFT_BEHIND", 1)
        refused = run_all(engine, [submission("next", "choice")])
    finally:
        released.set()
    assert (first["json"].last.finish, first["json"].tokens) == ("error", [])
    assert "takes too long" in first["json"].last.reason
    assert "try again later" in refused["next"].last.reason
    wait_until(lambda: thread.num_left_behind == 0)
    second = run_all(engine, others)  # what the matcher wrote after its time reached no mask
    for outputs in (first, second):
        assert {name: outputs[name].tokens for name in expected} == {
            name: entry.tokens for name, entry in expected.items()
        }
    assert engine.num_failed_steps == 0


@pytest.mark.slow
def test_a_grammar_that_is_a_little_slow_in_every_step_ends_its_request(
    models, grammar_cache, monkeypatch
):
    """Each step is within its limit, but the steps together are not."""
    original = row_grammars.mask_tree

    def crawl(*args):
        original(*args)
        began_s = time.thread_time()
        while time.thread_time() - began_s < row_grammars.MAX_STEP_S / 2:
            pass

    monkeypatch.setattr(row_grammars, "mask_tree", crawl)
    output = run_all(
        engine_of(models.target, Shape(), grammars=grammar_cache), [submission("json", "json", 60)]
    )["json"]
    assert output.last.finish == "error"
    assert len(output.tokens) < 6
