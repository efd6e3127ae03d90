"""A compiled grammar may be evicted before its request has a row; then it is compiled again."""

import threading

import pytest
from support.engines import Shape, engine_of, make_submission
from support.matrix import sampling_of
from support.tiny import VOCAB
from support.tiny_vocabulary import END, SPECS, TINY

from outrider.errors import RequestError
from outrider.structured import grammar_cache as cache_module
from outrider.wire.failure import FailureKind, RequestFailure
from outrider.wire.grammar_spec import Grammar
from outrider.wire.row_sampling import RowSampling

pytest.importorskip("xgrammar")

LONG_S = 20.0  # nothing here takes seconds unless it is broken


class ForgetfulCache(cache_module.GrammarCache):
    """A cache that `forget` empties; from then on it calls `again` before it compiles a grammar."""

    def __init__(self):
        super().__init__(lambda: TINY, vocab_size=VOCAB)
        self.again = lambda: None
        self._has_forgotten = False
        compile_spec = self._compiler.compile

        def compile_again(spec):
            if self._has_forgotten:
                self.again()
            return compile_spec(spec)

        self._compiler.compile = compile_again

    def forget(self):
        self._futures.clear()
        self._has_forgotten = True


@pytest.fixture
def grammar_cache():
    opened = ForgetfulCache()
    yield opened
    opened.close()


def spelling(name, kind, max_tokens):
    grammar = Grammar(spec=SPECS[kind], ends=(END,))
    return make_submission(
        name, [7, 3], RowSampling(seed=1, grammar=grammar), max_tokens=max_tokens
    )


def waiting_engine(models, grammar_cache):
    """Two rows are taken, one of them for long, and a request with a compiled grammar waits."""
    engine = engine_of(models.target, Shape(max_rows=2), grammars=grammar_cache)
    engine.add(make_submission("runs", [5, 6], sampling_of("greedy", 0), max_tokens=60))
    engine.add(make_submission("ends", [5, 8], sampling_of("greedy", 0), max_tokens=4))
    engine.step()
    engine.add(spelling("waits", "regex", 3))
    engine._runner.grammars.compile(SPECS["regex"]).result()  # and its matcher process runs
    engine.step()  # it is in the queue
    assert engine.stats.queue.waiting == 1
    grammar_cache.forget()
    engine._runner.grammars._tasks.clear()  # its process is evicted, too
    return engine


def run(engine):
    last = {}
    while engine.has_work:
        last |= {update.request_id: update for update in engine.step()}
    return last


@pytest.mark.slow
def test_other_requests_do_not_wait_for_a_grammar_that_is_compiled_again(models, grammar_cache):
    engine, has_gone_on, has_waited = waiting_engine(models, grammar_cache), threading.Event(), []

    def compile_after_that():
        has_waited.append(has_gone_on.wait(LONG_S))

    grammar_cache.again = compile_after_that
    updates = [update for _ in range(20) for update in engine.step()]
    assert sum(len(update.tokens) for update in updates if update.request_id == "runs") == 20
    assert not any(update.request_id == "waits" for update in updates)
    has_gone_on.set()
    last = run(engine)
    assert has_waited == [True]
    assert last["waits"].finish in ("length", "stop")
    assert last["runs"].finish == "length"


@pytest.mark.slow
def test_a_grammar_that_cannot_be_compiled_again_fails_its_own_request_alone(models, grammar_cache):
    def fail():
        raise RequestError("too complex")

    engine = waiting_engine(models, grammar_cache)
    grammar_cache.again = fail
    last = run(engine)
    assert last["waits"].finish == "error"
    assert last["waits"].failure == RequestFailure(FailureKind.REQUEST, "too complex")
    assert last["runs"].finish == "length"
    assert engine.num_failed_steps == 0
    assert engine.stats.queue.waiting == 0
