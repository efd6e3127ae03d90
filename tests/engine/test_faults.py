"""Steps that fail: their requests end with the reason, the other requests get their tokens."""

import logging
import random
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.paper import PaperResult, PaperRunner, expected_output, facts, submission

from outrider.engine.engine import Engine
from outrider.errors import CapacityError
from outrider.structured.grammar_cache import NoGrammars
from outrider.wire.grammar_spec import Grammar, GrammarSpec
from outrider.wire.row_sampling import RowSampling


class BrokenResult(PaperResult):
    """A step that was submitted in peace and fails on the device."""

    def wait(self):
        raise RuntimeError("the kernel failed in /usr/lib/driver.so\nand a second line")


@dataclass
class FailingRunner(PaperRunner):
    """Fails steps by number, before or after it has written half of what it should."""

    at_submit: set[int] = field(default_factory=set)
    at_wait: set[int] = field(default_factory=set)
    is_lost: bool = False
    ran: list[set[int]] = field(default_factory=list)  # rows of each step
    num_restarts: int = 0

    def submit(self, batch):
        self.ran.append(set(batch.rows))
        result = super().submit(batch)
        if self.num_steps in self.at_submit:
            raise RuntimeError("out of memory")
        return BrokenResult(result.result) if self.num_steps in self.at_wait else result

    def restart(self):
        self.num_restarts += 1
        if self.is_lost:
            raise RuntimeError("an illegal memory access was encountered")
        super().restart()
        for slot in self.slots:  # nothing written before may be read again
            self.slots[slot] = 255


def engine_that_fails(*, at_submit=(), at_wait=(), is_lost=False, **sizes):
    known = facts(**sizes)
    faults = {"at_submit": set(at_submit), "at_wait": set(at_wait), "is_lost": is_lost}
    runner = FailingRunner(known, random.Random(1), **faults)
    return Engine(runner, known), runner


def run(engine, *, most_steps=2000):
    """All tokens, and the last update, by request id."""
    tokens, last = {}, {}
    for _ in range(most_steps):
        if not engine.has_work:
            return tokens, last
        for update in engine.step():
            before = last.get(update.request_id)
            assert before is None or before.finish == "running", "one ending each"
            tokens.setdefault(update.request_id, []).extend(update.tokens)
            last[update.request_id] = update
    raise AssertionError("the engine does not come to an end")


def assert_nothing_leaks(engine):
    fresh = Engine(engine._runner, engine._facts)._scheduler
    scheduler = engine._scheduler
    assert scheduler.cache.num_available == fresh.cache.num_available
    assert sorted(scheduler._free_rows) == sorted(fresh._free_rows)
    assert (scheduler.num_running, scheduler.num_waiting) == (0, 0)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("where", ["at_submit", "at_wait"])
def test_the_queue_is_kept_when_a_step_fails(depth, nodes, where):
    engine, runner = engine_that_fails(depth=depth, nodes=nodes, max_rows=2, **{where: {3}})
    requests = [submission(f"r{i}", [i, 2, 3, 4, 5], max_tokens=9) for i in range(5)]
    for request in requests:
        engine.add(request)
    tokens, last = run(engine)
    for request in requests[:2]:  # there are two rows, and both ran in the third step
        update = last[request.request_id]
        assert update.finish == "error"
        right, got = expected_output(request, 64), tokens[request.request_id]
        assert len(got) < 9
        assert got == right[: len(got)]
    for request in requests[2:]:
        assert last[request.request_id].finish == "length"
        assert tokens[request.request_id] == expected_output(request, 64)
    assert (engine.num_failed_steps, runner.num_restarts) == (1, 1)
    assert_nothing_leaks(engine)


def test_a_running_request_that_was_not_in_the_step_is_computed_again():
    engine, runner = engine_that_fails(at_submit={1})
    requests = [submission(f"r{i}", [7, 8, i], max_tokens=6) for i in range(4)]
    for request in requests:
        engine.add(request)
    tokens, last = run(engine)
    assert len(runner.ran[0]) == 3  # of four rows: no more prompts share a step
    assert [last[f"r{i}"].finish for i in range(4)] == ["error"] * 3 + ["length"]
    assert tokens["r3"] == expected_output(requests[3], 64)
    assert last["r3"].progress.preemptions == 1


def test_a_later_step_in_flight_goes_down_with_the_one_it_began_from():
    engine, _ = engine_that_fails(at_wait={1}, depth=1, max_rows=2)
    for name in ("first", "second", "waits"):
        engine.add(submission(name, [1, 2, 3], max_tokens=9))
        if name == "first":
            engine.step()
    updates = engine.step()  # submits the step that admits the second, then reads the first one
    assert [update.request_id for update in updates] == ["first", "second"]
    assert {update.finish for update in updates} == {"error"}
    tokens, _ = run(engine)
    assert tokens == {"waits": expected_output(submission("", [1, 2, 3], max_tokens=9), 64)}


def test_the_reason_is_one_line_without_paths_and_the_log_has_the_traceback(caplog):
    engine, _ = engine_that_fails(at_wait={1})
    engine.add(submission("a", [1, 2, 3]))
    with caplog.at_level(logging.ERROR):
        _, last = run(engine)
    assert last["a"].reason == (
        "a step failed with RuntimeError: the kernel failed in ...; try again"
    )
    assert last["a"].failure.is_temporary
    assert "Traceback" in caplog.text
    assert "/usr/lib/driver.so" in caplog.text


def test_nothing_is_read_from_pages_of_before_the_failure():
    engine, _ = engine_that_fails(at_submit={4})
    engine.add(submission("a", list(range(10)), max_tokens=3))
    run(engine)  # its pages are in the prefix cache
    engine.add(submission("b", [40, 41], max_tokens=4))
    _, last = run(engine)
    assert last["b"].finish == "error"
    again = submission("c", list(range(10)), max_tokens=3)
    engine.add(again)
    tokens, last = run(engine)
    assert tokens["c"] == expected_output(again, 64)
    assert last["c"].progress.cached == 0


def test_a_device_that_fails_at_every_step_fails_every_request_and_comes_to_an_end():
    engine, _ = engine_that_fails(at_submit=range(1, 1000), max_rows=2)
    for i in range(7):
        engine.add(submission(f"r{i}", [i, 1], max_tokens=5))
    _, last = run(engine, most_steps=10)
    assert {update.finish for update in last.values()} == {"error"}
    assert len(last) == 7
    assert_nothing_leaks(engine)


def test_a_failure_of_a_step_whose_requests_are_gone_ends_no_request():
    engine, _ = engine_that_fails(at_wait={1}, depth=1)
    engine.add(submission("a", [1, 2, 3], max_tokens=1))
    assert engine.step() == ()
    engine.abort("a")
    assert engine.step() == ()
    assert engine.num_failed_steps == 1
    assert not engine.has_work
    later = submission("a", [4, 5], max_tokens=5)  # the same name, another request
    engine.add(later)
    assert run(engine)[0]["a"] == expected_output(later, 64)
    assert_nothing_leaks(engine)


def test_a_lost_device_fails_everybody_and_stops_the_engine():
    engine, _ = engine_that_fails(at_wait={2}, is_lost=True, max_rows=1)
    for name in ("runs", "waits"):
        engine.add(submission(name, [1, 2, 3], max_tokens=9))
    tokens, last = run(engine)
    assert {update.finish for update in last.values()} == {"error"}
    assert len(tokens["runs"]) == 1  # emitted before the failure
    assert "restart the process" in last["waits"].reason
    assert not engine.has_work
    for use in (lambda: engine.add(submission("later", [1])), engine.step):
        with pytest.raises(CapacityError, match="restart the process"):
            use()
    assert_nothing_leaks(engine)


@pytest.mark.parametrize("place", ["submit", "wait"])
def test_an_interrupt_inside_a_step_stops_the_engine(monkeypatch, place):
    def interrupt(*_):
        raise KeyboardInterrupt

    engine, runner = engine_that_fails()
    engine.add(submission("a", list(range(10)), max_tokens=4))
    monkeypatch.setattr(
        *((runner, "submit") if place == "submit" else (PaperResult, "wait")), interrupt
    )
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert not engine.has_work
    with pytest.raises(CapacityError, match="load the model again"):
        engine.add(submission("b", list(range(10)), max_tokens=4))


class ForgetfulGrammars(NoGrammars):
    """Forgets a grammar when it returns it compiled; `finish` compiles the pending one."""

    def __init__(self):
        self._pending = []

    def compile(self, spec):
        self._pending = self._pending or [Future()]
        return self._pending.pop() if self._pending[0].done() else self._pending[0]

    def finish(self):
        for grammar in self._pending:
            if not grammar.done():
                grammar.set_result("compiled")


@pytest.mark.parametrize("at", range(8, 14))
def test_a_failed_step_ends_a_request_that_lost_its_row_and_waits_for_a_grammar(at):
    known, grammars = facts(depth=1, max_rows=2, num_pages=7, max_context=20), ForgetfulGrammars()
    runner = FailingRunner(known, random.Random(1), at_wait={at})
    engine = Engine(runner, known, grammars)
    asked = RowSampling(seed=0, grammar=Grammar(spec=GrammarSpec(kind="regex", text="a"), ends=()))
    names = ("runs", "spells", "waits", "waits too")
    for name in names:
        request = submission(name, [1, 2, 3], max_tokens=15)
        engine.add(replace(request, sampling=asked) if name == "spells" else request)
    ended = {}
    for _ in range(200):
        if not engine.has_work:
            break
        grammars.finish()
        for update in engine.step():
            assert update.request_id not in ended
            ended |= {update.request_id: update.finish} if update.finish != "running" else {}
    assert set(ended) == set(names)
    assert_nothing_leaks(engine)


steps = st.sets(st.integers(1, 40), max_size=6)


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.fixed_dictionaries(
        {
            "page_size": st.sampled_from([1, 2, 4]),
            "nodes": st.integers(1, 4),
            "depth": st.integers(0, 1),
            "max_rows": st.integers(1, 4),
            "step_tokens": st.integers(17, 30),
            "num_pages": st.integers(50, 70),
            "max_context": st.just(40),
            "prefix_cache": st.booleans(),
        }
    ),
    prompts=st.lists(
        st.tuples(
            st.lists(st.integers(0, 2), min_size=1, max_size=10),
            st.integers(1, 20),
            st.integers(0, 2),  # priority
            st.integers(-20, 8),  # aborted in this step; never if negative
        ),
        min_size=1,
        max_size=10,
    ),
    at_submit=steps,
    at_wait=steps,
)
def test_requests_that_finish_have_their_own_tokens_whatever_fails(
    sizes, prompts, at_submit, at_wait
):
    engine, runner = engine_that_fails(at_submit=at_submit, at_wait=at_wait, **sizes)
    requests = {
        f"r{i}": submission(f"r{i}", prompt, max_tokens=most, priority=priority)
        for i, (prompt, most, priority, _) in enumerate(prompts)
    }
    for request in requests.values():
        engine.add(request)
    tokens, ends, aborted, now = {name: [] for name in requests}, {}, set(), 0
    while engine.has_work:
        for name, (*_, at) in zip(requests, prompts, strict=True):
            if at == now and name not in ends:
                engine.abort(name)
                aborted.add(name)
        for update in engine.step():
            assert update.request_id not in aborted | ends.keys()
            tokens[update.request_id] += update.tokens
            if update.finish != "running":
                ends[update.request_id] = update.finish
        now += 1
        assert now < 2000, "the engine does not come to an end"
    assert ends.keys() | aborted == requests.keys()
    for name, request in requests.items():
        right = expected_output(request, 40)
        got = tokens[name]
        assert got == (right if ends.get(name) == "length" else right[: len(got)])
    assert ("error" in ends.values()) <= (engine.num_failed_steps > 0)
    assert runner.num_restarts == engine.num_failed_steps
    assert_nothing_leaks(engine)
