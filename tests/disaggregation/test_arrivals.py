"""Prompts that come from other engines: when they take pages, and which requests go first."""

import threading
from dataclasses import replace

import pytest
from support.engines import Shape, engine_of, make_submission, run_all
from support.matrix import sampling_of
from support.role_traces import submissions
from support.roles import pair_of

from outrider.disaggregation import offer_watch, page_fetches
from outrider.disaggregation.tcp_pages import TcpSink
from outrider.engine.draft_policy import WholeBudget
from outrider.runtime.draft_kinds import NoDraft
from outrider.wire.draft_budget import PLAIN, UNBOUNDED, Budget, whole_rung

LONG_S = 60.0
SMALL = Shape(kv_tokens=80, max_context=76)  # 20 pages of 4
GREEDY = sampling_of("greedy", 0)


def long_answer(num_tokens=16, max_tokens=40):
    """It grows from 5 pages to 15."""
    return make_submission("long", [5, 6, 7, 8] * (num_tokens // 4), GREEDY, max_tokens=max_tokens)


def prompt_of(name, num_tokens=30, first=9):
    prompt = [first + place % 30 for place in range(num_tokens)]
    return make_submission(name, prompt, GREEDY, max_tokens=4)


def collect(outputs, updates):
    for update in updates:
        outputs.setdefault(update.request_id, [[], None])
        outputs[update.request_id][0] += update.tokens
        outputs[update.request_id][1] = update
    return outputs


def run_until(engine, outputs, holds):
    while not holds():
        collect(outputs, engine.step())
    return outputs


def await_next(engine):
    """Wait for what the last arrival waits for, without a step."""
    *_, arrival = engine._pending.role._arrivals.values()
    arrival.awaited.result(LONG_S)


def is_over(outputs, name):
    return name in outputs and outputs[name][1].finish != "running"


class HeldSink(TcpSink):
    """Reads begin at once, and go on when the test says so."""

    go_on = threading.Event()

    def read(self, *args):
        assert self.go_on.wait(LONG_S)
        return super().read(*args)


@pytest.fixture(name="held")
def sink_whose_reads_wait():
    HeldSink.go_on = threading.Event()
    yield HeldSink
    HeldSink.go_on.set()


def right_tokens(models, *asked):
    outputs = run_all(engine_of(models.target, Shape()), list(asked))
    return [outputs[each.request_id].tokens for each in asked]


def test_a_prompt_that_is_still_computed_elsewhere_takes_no_page(models):
    """A running answer needs more pages than the prompt would leave, and is not preempted."""
    long, late = long_answer(), prompt_of("late", 50)
    with pair_of(models.target, NoDraft(), decode_shape=SMALL) as pair:
        engine, outputs = pair.decode.engine, {}
        engine.add(long)
        pair.board.expect("room")
        engine.add(pair.fetched(late, "room"))
        assert engine.stats.queue.waiting == 2, "routers balance by this number"
        run_until(engine, outputs, lambda: is_over(outputs, "long"))
        assert outputs["long"][1].progress.preemptions == 0
        assert (engine.stats.queue.waiting, engine.stats.transfers.total_failed) == (1, 0)
        pair.offer(late, "room")
        run_until(engine, outputs, lambda: not engine.has_work)
        assert outputs["late"][1].progress.cached == 48
        assert [outputs["long"][0], outputs["late"][0]] == right_tokens(models, long, late)
        pair.assert_no_leak()


def test_an_offer_that_finds_no_pages_is_kept_until_there_are_some(models, monkeypatch):
    monkeypatch.setattr(offer_watch, "_HOLD_S", 0.01)
    long, late = long_answer(36, max_tokens=30), prompt_of("late", 50)  # 10 pages, and 12
    with pair_of(models.target, NoDraft(), decode_shape=SMALL, lease_s=0.3) as pair:
        engine, outputs = pair.decode.engine, {}
        engine.add(long)
        collect(outputs, engine.step())
        pair.offer(late, "room")
        engine.add(pair.fetched(late, "room"))
        waits = threading.Event()
        for _ in range(20):  # together longer than the lease
            assert not waits.wait(0.03)
            collect(outputs, engine.step())
            pair.prefill.engine.tend()
        assert not is_over(outputs, "long")
        assert pair.prefill.engine.stats.transfers.offered == 1
        assert engine.stats.transfers.pages == 0
        run_until(engine, outputs, lambda: not engine.has_work)
        assert outputs["long"][1].progress.preemptions == 0
        assert outputs["late"][1].progress.cached == 48
        assert [outputs["long"][0], outputs["late"][0]] == right_tokens(models, long, late)
        pair.assert_no_leak()


def test_prompts_of_a_slow_engine_do_not_delay_those_of_another(models):
    """More of them than there are threads."""
    shape = Shape(max_rows=64)
    (one,) = submissions()[2:]
    with (
        pair_of(models.target, NoDraft(), shape=shape) as pair,
        pair_of(models.target, NoDraft()) as slow,
    ):
        for place in range(2 * page_fetches._NUM_THREADS):
            slow.board.expect(f"{place}")
            asked = prompt_of(f"slow {place}", first=3 + place)
            pair.decode.engine.add(slow.fetched(asked, f"{place}"))
        pair.offer(one, "room")
        pair.decode.engine.add(pair.fetched(one, "room"))
        outputs = {}
        run_until(pair.decode.engine, outputs, lambda: is_over(outputs, "r2"))
        assert outputs["r2"][1].progress.cached == 28
        assert pair.decode.engine.stats.transfers.total_failed == 0
        pair.decode.engine.abort_all()
        pair.assert_no_leak()


def test_a_read_that_has_not_begun_gives_way_to_a_running_answer(models, held, monkeypatch):
    monkeypatch.setattr(page_fetches, "_NUM_THREADS", 1)
    long, first, last = long_answer(), prompt_of("first", 10), prompt_of("last", 30, first=20)
    with pair_of(models.target, NoDraft(), decode_shape=SMALL, make_sink=held) as pair:
        engine, outputs = pair.decode.engine, {}
        engine.add(long)
        collect(outputs, engine.step())
        for each in (first, last):
            pair.offer(each, each.request_id)
            engine.add(pair.fetched(each, each.request_id))
        run_until(engine, outputs, lambda: engine.stats.transfers.arriving == 2)
        assert engine.stats.transfers.pages == 2 + 7
        run_until(engine, outputs, lambda: is_over(outputs, "long"))
        assert outputs["long"][1].progress.preemptions == 0
        held.go_on.set()
        run_until(engine, outputs, lambda: not engine.has_work)
        assert [outputs[each][1].progress.cached for each in ("first", "last")] == [8, 28]
        found = [outputs[each][0] for each in ("long", "first", "last")]
        assert found == right_tokens(models, long, first, last)
        pair.assert_no_leak()


def test_pages_that_have_come_are_not_given_to_a_later_prompt(models):
    """Its request waits for a row; the pages would be the first ones to be evicted."""
    long = long_answer(36, max_tokens=6)  # 11 pages at most, of 20
    early, late = prompt_of("early", 30), prompt_of("late", 30, first=20)  # 7 pages come for each
    shape = replace(SMALL, max_rows=1)
    with pair_of(models.target, NoDraft(), decode_shape=shape) as pair:
        engine, outputs = pair.decode.engine, {}
        engine.add(long)
        collect(outputs, engine.step())
        for each in (early, late):
            pair.offer(each, each.request_id)
            engine.add(pair.fetched(each, each.request_id))
            for _ in range(2):  # its offer, then perhaps its read
                await_next(engine)
                collect(outputs, engine.step())
        assert not is_over(outputs, "long")
        assert (engine.stats.transfers.total_done, engine.stats.transfers.pages) == (1, 7)
        run_until(engine, outputs, lambda: not engine.has_work)
        assert [outputs[each][1].progress.cached for each in ("early", "late")] == [28, 28]
        assert engine.stats.transfers.total_failed == 0
        pair.assert_no_leak()


def test_an_offer_leaves_pages_to_requests_before_it(models):
    """One to each that runs, as the scheduler does, and all to one that waits."""
    long, early, late = long_answer(36), prompt_of("early", 20), prompt_of("late", 42, first=20)
    shape = replace(SMALL, kv_tokens=92, max_rows=1)  # 10 pages of 23, then 6, 10 for the offer
    with pair_of(models.target, NoDraft(), decode_shape=shape) as pair:
        engine, outputs = pair.decode.engine, {}
        engine.add(long)
        collect(outputs, engine.step())
        engine.add(early)  # there is no row for it
        pair.offer(late, "late")
        engine.add(pair.fetched(late, "late"))
        await_next(engine)
        collect(outputs, engine.step())
        assert engine.stats.transfers.pages == 0
        engine.abort("early")
        collect(outputs, engine.step())
        assert engine.stats.transfers.pages == 10
        run_until(engine, outputs, lambda: not engine.has_work)
        pair.assert_no_leak()


def test_pages_that_have_come_give_way_to_a_running_answer(models):
    long, early = long_answer(36, max_tokens=28), prompt_of("early", 30)  # 16 pages at most, and 7
    shape = replace(SMALL, max_rows=1)
    with pair_of(models.target, NoDraft(), decode_shape=shape) as pair:
        engine, outputs = pair.decode.engine, {}
        engine.add(long)
        collect(outputs, engine.step())
        pair.offer(early, "early")
        engine.add(pair.fetched(early, "early"))
        for _ in range(2):  # its offer, then its read
            await_next(engine)
            collect(outputs, engine.step())
        assert engine.stats.transfers.total_done == 1
        assert not is_over(outputs, "long")
        run_until(engine, outputs, lambda: not engine.has_work)
        assert outputs["long"][1].progress.preemptions == 0
        assert [outputs["long"][0], outputs["early"][0]] == right_tokens(models, long, early)
        pair.assert_no_leak()


def test_a_text_that_is_computed_here_meanwhile_needs_no_transfer(models):
    (one,) = submissions()[2:]
    same = replace(one, request_id="same")
    with pair_of(models.target, NoDraft()) as pair:
        pair.board.expect("room")
        engine, outputs = pair.decode.engine, {}
        engine.add(pair.fetched(one, "room"))
        engine.add(same)
        run_until(engine, outputs, lambda: is_over(outputs, "same"))
        pair.offer(one, "room")
        run_until(engine, outputs, lambda: not engine.has_work)
        assert outputs["r2"][0] == outputs["same"][0]
        counts = engine.stats.transfers
        assert (counts.total_done, counts.total_failed, counts.total_bytes) == (0, 0, 0)
        pair.prefill.engine.tend()
        run_until(pair.prefill.engine, {}, lambda: not pair.board._offers)
        pair.assert_no_leak()


class Bound(WholeBudget):
    """Drafts nothing until the test says so."""

    rung = whole_rung(PLAIN)

    def choose(self, step, *, num_rows, num_prompt):
        return self.rung


def test_steps_that_a_head_has_not_read_do_not_overwrite_what_came(models):
    """The row has ended, and its pages were given to a prompt that another engine computed."""
    traced = replace(GREEDY, trace=True)
    draft = models.draft("eagle3", Budget(steps=3, topk=1, nodes=4))
    long = long_answer(16, max_tokens=44)
    late = replace(prompt_of("late", 52), sampling=traced)
    with pair_of(models.target, draft, decode_shape=SMALL) as pair:
        engine, outputs, rounds = pair.decode.engine, {}, []
        engine._scheduler._policy = policy = Bound()
        engine.add(long)
        run_until(engine, outputs, lambda: not engine.has_work)
        policy.rung = whole_rung(UNBOUNDED)
        pair.offer(late, "late")
        engine.add(pair.fetched(late, "late"))
        while engine.has_work:
            updates = engine.step()
            rounds += [each for update in updates for each in update.rounds]
        assert engine.stats.transfers.total_done == 1
    alone, expected = engine_of(models.target, SMALL, draft), []
    alone.add(late)
    while alone.has_work:
        expected += [each for update in alone.step() for each in update.rounds]
    assert rounds == expected
