"""Whatever goes wrong with a transfer, the decode engine computes the prompt and loses no page."""

import socket
import threading
import time
from dataclasses import replace

import pytest
from support.engines import Shape, engine_of, make_submission, run_all
from support.matrix import sampling_of
from support.role_traces import submissions, traces
from support.roles import pair_of

from outrider.disaggregation import offer_watch
from outrider.runtime.draft_kinds import NoDraft
from outrider.wire.transfer_order import TransferOrder

LONG_S = 60.0


@pytest.fixture(name="pair")
def pair_of_engines(models):
    with pair_of(models.target, NoDraft()) as pair:
        yield pair


@pytest.fixture(name="right")
def answer_of_one_engine(models):
    (one,) = submissions()[2:]
    return traces(engine_of(models.target, Shape()), [one])["r2"][0]


def wait_until(holds):
    end_s = time.monotonic() + LONG_S
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.005)


def computed_here(pair, submission, room):
    """The tokens of a request whose KV cannot come."""
    output = run_all(pair.decode.engine, [pair.fetched(submission, room)])["r2"]
    assert output.last.progress.cached == 0
    assert pair.decode.engine.stats.transfers.total_failed == 1
    return output.tokens


def test_a_prefill_that_never_ends_is_waited_for_until_the_deadline(models, right):
    (one,) = submissions()[2:]
    with pair_of(models.target, NoDraft(), deadline_s=0.1) as pair:
        pair.board.expect("room")  # the prefill engine goes on saying that it computes
        assert computed_here(pair, one, "room") == right
        wait_until(
            lambda: pair.decode.engine.tend() or not pair.decode.engine.stats.transfers.pages
        )
        pair.assert_no_leak()


def test_nothing_listens(pair, right):
    (one,) = submissions()[2:]
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        order = TransferOrder(kind="fetch", room="room", host="127.0.0.1", port=port)
        output = run_all(pair.decode.engine, [replace(one, transfer=order)])["r2"]
    assert output.tokens == right
    pair.assert_no_leak()


def test_an_unknown_room(pair, right, monkeypatch):
    monkeypatch.setattr(offer_watch, "_UNKNOWN_S", 0.1)
    (one,) = submissions()[2:]
    assert computed_here(pair, one, "no such room") == right
    pair.assert_no_leak()


def test_a_lease_without_a_reader_ends(models, right):
    (one,) = submissions()[2:]
    with pair_of(models.target, NoDraft(), lease_s=0.05) as pair:
        pair.offer(one, "room")
        held = pair.prefill.engine.stats
        assert (held.transfers.offered, held.pages.free) == (1, held.pages.total - 8)
        time.sleep(0.06)
        pair.prefill.engine.tend()
        assert pair.prefill.engine.stats.transfers.offered == 0
        assert computed_here(pair, one, "room") == right
        pair.assert_no_leak()


def test_a_room_with_another_prompt(pair, right):
    (one,) = submissions()[2:]
    other = make_submission("other", [*one.prompt[:-1], 3], sampling_of("greedy", 0))
    pair.offer(other, "room")
    assert computed_here(pair, one, "room") == right
    pair.prefill.engine._pending.role.drop()
    pair.assert_no_leak()


def test_no_free_page(models, right):
    (one,) = submissions()[2:]
    small = Shape(kv_tokens=80, max_context=60)
    with pair_of(models.target, NoDraft(), decode_shape=small) as pair:
        pair.offer(one, "room")
        long = make_submission("long", [9] * 40, sampling_of("greedy", 0), max_tokens=10)
        pair.decode.engine.add(long)
        pair.decode.engine.step()
        output = run_all(pair.decode.engine, [pair.fetched(one, "room")])["r2"]
        assert output.tokens == right
        wait_until(lambda: not (pair.prefill.engine.tend() or pair.board._offers))
        pair.assert_no_leak()


def test_an_abort_while_the_prompt_is_being_computed(pair):
    (one,) = submissions()[2:]
    pair.board.expect("room")
    pair.decode.engine.add(pair.fetched(one, "room"))
    pair.decode.engine.step()
    assert pair.decode.engine._pending.role.num_waiting == 1
    pair.decode.engine.abort("r2")
    assert not pair.decode.engine.has_work
    pair.assert_no_leak()


def test_an_abort_of_the_prefill_frees_the_reader(pair, right):
    (one,) = submissions()[2:]
    order = TransferOrder(kind="offer", room="room")
    pair.prefill.engine.add(replace(one, transfer=order))
    pair.prefill.engine.abort("r2")
    assert computed_here(pair, one, "room") == right
    pair.assert_no_leak()


def test_a_failed_step_while_pages_arrive(pair, right):
    (one,) = submissions()[2:]
    victim = make_submission("victim", [5, 6, 7], sampling_of("greedy", 0))
    pair.board.expect("room")
    engine, runner = pair.decode.engine, pair.decode.runner
    engine.add(pair.fetched(one, "room"))
    engine.add(victim)
    submit, failures = runner.submit, iter([RuntimeError("injected")])

    def fail_once(batch):
        for failure in failures:
            raise failure
        return submit(batch)

    runner.submit = fail_once
    tokens = []
    pair.board.end("room")
    while engine.has_work:
        for update in engine.step():
            if update.request_id == "r2":
                tokens += update.tokens
    assert tokens == right
    pair.assert_no_leak()


def test_a_failed_step_of_the_prefill_ends_its_offers(pair):
    (one,) = submissions()[2:]
    pair.offer(one, "room")
    engine, runner = pair.prefill.engine, pair.prefill.runner
    submit, failures = runner.submit, iter([RuntimeError("injected")])

    def fail_once(batch):
        for failure in failures:
            raise failure
        return submit(batch)

    runner.submit = fail_once
    run_all(engine, [make_submission("victim", [5, 6, 7], sampling_of("greedy", 0))])
    assert pair.board.state("room") == "ended"
    pair.assert_no_leak()


def test_facts_that_differ_are_named(models, right, caplog):
    (one,) = submissions()[2:]
    facts = ({"page size": "16"}, {"page size": "8"})
    with pair_of(models.target, NoDraft(), facts=facts) as pair:
        pair.offer(one, "room")
        assert computed_here(pair, one, "room") == right
        assert "another page size (8) than the prefill engine (16)" in caplog.text


def test_another_secret_is_refused(models, right, caplog):
    (one,) = submissions()[2:]
    with pair_of(models.target, NoDraft(), key=b"another") as pair:
        pair.offer(one, "room")
        assert computed_here(pair, one, "room") == right
        assert "set OUTRIDER_RANKS_KEY to the same one on both" in caplog.text


def test_a_prompt_that_is_offered_twice_holds_its_pages_once(pair, right):
    (one,) = submissions()[2:]
    pair.offer(one, "room")
    pair.offer(one, "room")
    order = TransferOrder(kind="offer", room="room")
    pair.prefill.engine.add(replace(one, transfer=order))
    pair.prefill.engine.abort("r2")
    output = run_all(pair.decode.engine, [pair.fetched(one, "room")])["r2"]
    assert (output.tokens, output.last.progress.cached) == (right, 28)
    pair.assert_no_leak()


def test_a_restarted_prefill_engine_is_asked_again(pair, right):
    """Connections to the engine before it are closed; the next transfer opens another."""
    (one,) = submissions()[2:]
    pair.offer(one, "room")
    run_all(pair.decode.engine, [pair.fetched(one, "room")])
    channels = pair.decode.engine._pending.role._fetches._channels
    ((opened,),) = channels._idle.values()
    opened.channel._opened.socket.shutdown(socket.SHUT_RD)  # as the end of the peer reads
    pair.decode.engine.flush()
    pair.offer(one, "again")
    output = run_all(pair.decode.engine, [pair.fetched(one, "again")])["r2"]
    assert (output.tokens, output.last.progress.cached) == (right, 28)
    pair.assert_no_leak()


def test_a_thread_that_cannot_start_leaves_the_prompt_to_this_engine(pair, right, monkeypatch):
    (one,) = submissions()[2:]
    pair.offer(one, "room")
    start = threading.Thread.start

    def fail(thread):
        if thread.name == "offers":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail)
    assert computed_here(pair, one, "room") == right
    monkeypatch.undo()
    pair.decode.engine.flush()
    again = replace(one, request_id="again")
    output = run_all(pair.decode.engine, [pair.fetched(again, "room")])["again"]
    assert (output.tokens, output.last.progress.cached) == (right, 28)
    pair.assert_no_leak()


def test_every_address_that_cannot_be_reached_is_left_alone_for_a_while(pair, right):
    (one,) = submissions()[2:]
    host = "255.255.255.255"  # no route for TCP
    order = TransferOrder(kind="fetch", room="room", host=host, port=9)
    output = run_all(pair.decode.engine, [replace(one, transfer=order)])["r2"]
    assert output.tokens == right
    channels = pair.decode.engine._pending.role._fetches._channels
    assert list(channels._down_until_s) == [(host, 9)]
    assert not channels._idle
    for port in range(5000):
        channels._note_down((host, port))
    assert len(channels._down_until_s) == 1024
    assert (host, 4999) in channels._down_until_s
