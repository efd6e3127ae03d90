"""A worker in this process, connected to a remote engine by a real socket."""

import random
import socket
import threading
import time
from dataclasses import dataclass, field

import pytest
import zmq
from support.paper import PaperRunner, expected_output, facts, submission
from support.served import wait_for

from outrider.config.kv_events_config import KVEventsConfig
from outrider.engine.engine import Engine
from outrider.engine.prefix_cache.prefix_cache import PrefixCache
from outrider.server import worker_process
from outrider.server.heartbeat import Heartbeat, HeartbeatLimits
from outrider.server.kv_event_publisher import KVEventPublisher, open_kv_events
from outrider.server.metrics import Meter
from outrider.server.remote_engine import RemoteEngine
from outrider.server.worker_board import BoardReader, WorkerBoard
from outrider.server.worker_messages import (
    StepFailed,
    StepUpdates,
    Submit,
    decode_from_worker,
    encode,
)
from outrider.server.worker_process import Worker
from outrider.structured.grammar_cache import NO_GRAMMARS
from outrider.wire.failure import FailureKind

CONTEXT = 64


@dataclass
class LostRunner(PaperRunner):
    """A device that fails for good at one step, or at a token; at none if that is 0."""

    lost_at: int = 0
    poison: int = 0

    def submit(self, batch):
        result = super().submit(batch)
        is_poisoned = self.poison and (
            any(self.poison in chunk.tokens for chunk in batch.chunks)
            or any(self.poison in tokens for tokens in result.result.tokens)
        )
        if self.num_steps == self.lost_at or is_poisoned:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return result

    def restart(self):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


@dataclass
class StuckRunner(LostRunner):
    """A device on which a step hangs until it is released, and then fails for good."""

    released: threading.Event = field(default_factory=threading.Event)

    def submit(self, batch):
        self.released.wait(30)
        return super().submit(batch)


class ServerEnd:
    """The server's end of the socket."""

    def __init__(self, known, board):
        self.board = board
        self._context = zmq.Context()
        self.socket, self.other_end = self._context.socket(zmq.PAIR), self._context.socket(zmq.PAIR)
        self.socket.bind("inproc://engine")
        self.other_end.connect("inproc://engine")
        self._meter = Meter("m")
        self.engine = RemoteEngine(known, grammars=NO_GRAMMARS, max_queued=9, meter=self._meter)
        self.engine.attach(lambda message: self.socket.send(encode(message)))

    def receive_all(self):
        """Receive all messages of the worker; returns the updates in their order."""
        updates = []
        while self.socket.poll(0):
            message = decode_from_worker(self.socket.recv())
            if isinstance(message, StepUpdates):
                updates += self.engine.receive(message.updates)
            elif isinstance(message, StepFailed):
                updates += self.engine.start_over(message)
        return updates

    def replace_worker(self):
        """The worker has ended: attach to the next. Returns the updates of requests that end."""
        while self.other_end.poll(0):  # messages to the old worker are lost
            self.other_end.recv()
        board = BoardReader(self.board)
        updates = self.engine.detach(board.lost_steps())
        board.close()
        self.board.unlink()  # every worker has its own
        self.engine.attach(lambda message: self.socket.send(encode(message)))
        return list(updates)

    @property
    def meter_text(self):
        return self._meter.render().decode()

    def close(self):
        self._context.destroy(linger=0)


@pytest.fixture
def server_end(tmp_path):
    opened = ServerEnd(facts(max_rows=2, max_context=CONTEXT), tmp_path / "board")
    yield opened
    opened.close()


def worker_behind(server_end, *, lost_at=0, poison=0, **sizes):
    known = facts(**{"max_rows": 2, "max_context": CONTEXT, **sizes})
    runner = LostRunner(known, random.Random(1), lost_at=lost_at, poison=poison)
    engine = Engine(runner, known)
    return Worker(engine, server_end.other_end, WorkerBoard(server_end.board))


def answers_of(updates):
    """Tokens and finish reason of each request."""
    answers = {}
    for update in updates:
        tokens, _ = answers.get(update.request_id, ([], ""))
        answers[update.request_id] = (tokens + list(update.tokens), update.finish)
    return answers


def run_to_the_end(server_end, **runner):
    """Run workers, each after the loss of the last, until no request is in flight."""
    updates, num_lost = [], 0
    while server_end.engine.num_in_flight:
        worker = worker_behind(server_end, **runner)
        while server_end.engine.num_in_flight and not worker._engine.is_over:
            worker._receive_all()
            if worker._engine.has_work:
                worker._step()
            updates += server_end.receive_all()
        if worker._engine.is_over:
            num_lost += 1
            runner["lost_at"] = 0
            updates += server_end.replace_worker()
    return answers_of(updates), num_lost


@pytest.mark.parametrize("lost_at", [1, 2, 3, 6])
@pytest.mark.parametrize("nodes", [1, 3])
def test_a_worker_whose_device_is_lost_costs_no_request_a_token(server_end, lost_at, nodes):
    submitted = [submission(f"r{i}", [1 + i, 2], max_tokens=20 - 3 * i) for i in range(5)]
    for each in submitted:
        server_end.engine.add(each)
    answers, num_lost = run_to_the_end(server_end, lost_at=lost_at, nodes=nodes)
    assert num_lost == 1
    assert answers == {
        each.request_id: (expected_output(each, CONTEXT), "length") for each in submitted
    }


@pytest.mark.parametrize("at", ["prompt", "answer"])
def test_a_request_that_kills_workers_ends_alone_and_its_neighbours_complete(server_end, at):
    """The first worker dies with a whole batch, the second with the poison alone."""
    poison = submission("poison", [9, 2], max_tokens=20)
    token = 9 if at == "prompt" else expected_output(poison, CONTEXT)[12]
    others = [submission(f"r{i}", [1 + i, 2], max_tokens=20) for i in range(20)]
    texts = {each: [*each.prompt, *expected_output(each, CONTEXT)] for each in others}
    others = [each for each in others if token not in texts[each]][:5]
    for each in (others[0], poison, *others[1:]):
        server_end.engine.add(each)
    answers, num_lost = run_to_the_end(server_end, poison=token)
    assert num_lost == 2
    tokens, finish = answers.pop("poison")
    assert finish == "error"
    assert tokens == expected_output(poison, CONTEXT)[: len(tokens)]
    assert answers == {
        each.request_id: (expected_output(each, CONTEXT), "length") for each in others
    }
    assert 'outrider:suspect_requests_total{model_name="m"} 1.0' in server_end.meter_text


def test_a_request_that_this_worker_has_no_room_for_is_refused_and_the_others_go_on(server_end):
    """The server checks by the sizes of the first worker; a later one may have less memory."""
    worker, small = (
        worker_behind(server_end, num_pages=4),
        submission("small", [1, 2], max_tokens=3),
    )
    server_end.engine.add(submission("large", [5] * 40, max_tokens=9))
    server_end.engine.add(small)
    worker._receive_all()
    while worker._engine.has_work:
        worker._step()
    updates = server_end.receive_all()
    (refused,) = [update for update in updates if update.request_id == "large"]
    assert refused.finish == "error"
    assert "for which steps need 2 positions more, but the KV cache holds 16" in refused.reason
    assert refused.failure.kind is FailureKind.REQUEST
    answer = [token for each in updates if each.request_id == "small" for token in each.tokens]
    assert answer == expected_output(small, CONTEXT)
    assert server_end.engine.num_in_flight == 0


def test_a_request_is_alone_in_two_lost_steps_and_in_no_third(server_end):
    """It is what kills the workers."""
    engine, sent = server_end.engine, []
    engine.add(submission("poison", [1, 2], max_tokens=9))
    assert engine.detach(frozenset({"poison"})) == ()
    engine.attach(sent.append)
    assert [message.submission.request_id for message in sent] == ["poison"]
    (last,) = engine.detach(frozenset({"poison"}))
    assert (last.request_id, last.finish) == ("poison", "error")
    assert last.reason.endswith("The request was in 2 lost steps, the last alone")
    assert last.failure.kind is FailureKind.INTERNAL
    engine.attach(sent.append)
    assert len(sent) == 1


@dataclass
class FailingRunner(LostRunner):
    """A device on which steps fail, but which can go on until it is lost, too."""

    is_lost: bool = False

    def restart(self):
        if self.is_lost:
            super().restart()
        PaperRunner.restart(self)


@pytest.mark.parametrize("depth", [0, 1])
def test_a_request_that_fails_steps_ends_and_its_neighbours_complete(server_end, depth):
    """No worker dies: the server submits everything again to the same one."""
    poison = submission("poison", [9, 2], max_tokens=20)
    others = [submission(f"r{i}", [1 + i, 2], max_tokens=20) for i in range(20)]
    texts = {each: [*each.prompt, *expected_output(each, CONTEXT)] for each in others}
    others = [each for each in others if 9 not in texts[each]][:8]
    known = facts(max_rows=3, max_context=CONTEXT, depth=depth)
    runner = FailingRunner(known, random.Random(1), poison=9)
    worker = Worker(Engine(runner, known), server_end.other_end, WorkerBoard(server_end.board))
    running = threading.Thread(target=worker.run)
    for each in (others[0], poison, *others[1:4]):
        server_end.engine.add(each)
    running.start()
    updates, late = [], others[4:]  # submitted at any time, also between a failure and its answer
    while server_end.engine.num_in_flight or late:
        if late:
            server_end.engine.add(late.pop())
        updates += server_end.receive_all()
        time.sleep(0.001)
    runner.is_lost, runner.poison = True, 3
    server_end.engine.add(submission("last", [3]))
    running.join(120)
    answers = answers_of(updates)
    assert answers.pop("poison") == ([], "error")
    assert answers == {
        each.request_id: (expected_output(each, CONTEXT), "length") for each in others
    }
    assert runner.num_steps > 2
    assert worker._engine.num_failed_steps == 3  # two of the poison, and the last


def test_requests_survive_any_number_of_workers_that_end_outside_of_steps_after_an_update(
    server_end,
):
    engine = server_end.engine
    names = ["a", "b", "c"]
    for name in names:
        engine.add(submission(name, [1, 2], max_tokens=50))
    for _ in range(5):
        worker = worker_behind(server_end)
        worker._receive_all()
        assert list(worker._engine._requests) == names
        for _ in range(4):
            worker._step()
        assert server_end.receive_all()
        worker._board.write_steps(())
        assert server_end.replace_worker() == []
    assert engine.num_in_flight == 3


class BrittleEngine(Engine):
    """Fails outside of steps: when it gets a prompt that begins with 9."""

    def add(self, submission, emitted=()):
        if submission.prompt[0] == 9:
            raise RuntimeError("a bug")
        super().add(submission, emitted)


@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_request_that_kills_workers_before_its_first_step_ends_alone(server_end, place):
    submitted = [submission(f"r{i}", [1 + i, 2], max_tokens=20) for i in range(3)]
    submitted.insert(place, submission("poison", [9, 2], max_tokens=20))
    for each in submitted:
        server_end.engine.add(each)
    updates, known, num_lost = [], facts(max_rows=2, max_context=CONTEXT), 0
    while server_end.engine.num_in_flight:
        engine = BrittleEngine(PaperRunner(known, random.Random(1)), known)
        worker = Worker(engine, server_end.other_end, WorkerBoard(server_end.board))
        try:
            while server_end.engine.num_in_flight:
                worker._receive_all()
                worker._step()
                updates += server_end.receive_all()
        except RuntimeError:  # ends the process
            num_lost += 1
            assert num_lost < 9
            updates += server_end.receive_all() + server_end.replace_worker()
    answers = answers_of(updates)
    assert answers.pop("poison") == ([], "error")
    assert answers == {
        each.request_id: (expected_output(each, CONTEXT), "length")
        for each in submitted
        if each.request_id != "poison"
    }


def test_requests_that_only_a_batch_kills_end_at_last(server_end):
    engine = server_end.engine
    for name in ("a", "b"):
        engine.add(submission(name, [1, 2], max_tokens=9))
    engine.add(submission("waits", [1, 2], max_tokens=9))
    for _ in range(7):
        assert engine.detach(frozenset({"a", "b"})) == ()
        engine.attach(lambda message: None)
    assert {each.request_id for each in engine.detach(frozenset({"a", "b"}))} == {"a", "b"}
    assert engine.num_in_flight == 1


def test_a_suspect_that_is_aborted_makes_way_for_the_others(server_end):
    engine, sent = server_end.engine, []
    for name in ("a", "b", "c"):
        engine.add(submission(name, [1, 2], max_tokens=9))
    engine.detach(frozenset({"a", "b"}))
    engine.attach(sent.append)
    engine.add(submission("new", [1, 2], max_tokens=9))  # waits with the others
    engine.abort("b")
    engine.abort("a")
    names = [each.submission.request_id for each in sent if isinstance(each, Submit)]
    assert names == ["a", "c", "new"]


def test_a_request_beside_one_whose_client_has_left_was_not_alone(server_end):
    engine = server_end.engine
    engine.add(submission("innocent", [1, 2], max_tokens=9))
    for name in ("killer", "killer again"):
        engine.add(submission(name, [3, 2], max_tokens=9))
        engine.abort(name)  # the worker has begun its step
        assert engine.detach(frozenset({"innocent", name})) == ()
        engine.attach(lambda message: None)
    assert engine.num_in_flight == 1


def test_the_counts_of_a_request_go_on_with_the_next_worker(server_end):
    server_end.engine.add(submission("a", [1, 2], max_tokens=20))
    worker = worker_behind(server_end)
    worker._receive_all()
    for _ in range(5):
        worker._step()
    (*_, before) = server_end.receive_all()
    server_end.replace_worker()
    worker = worker_behind(server_end)
    while server_end.engine.num_in_flight:
        worker._receive_all()
        worker._step()
        updates = server_end.receive_all()
    assert before.progress.rounds == 4
    assert updates[-1].progress.rounds == 17  # three prompt steps emitted the other tokens
    assert updates[-1].queued_s == before.queued_s


def test_a_request_that_ends_after_lost_steps_counts_each_round_once(server_end):
    engine = server_end.engine
    engine.add(submission("a", [1, 2], max_tokens=60))
    for _ in range(2):
        worker = worker_behind(server_end)
        worker._receive_all()
        for _ in range(5):
            worker._step()
        (*_, before) = server_end.receive_all()
        last = server_end.engine.detach(frozenset({"a"}))
        engine.attach(lambda message: server_end.socket.send(encode(message)))
    assert before.progress.rounds == 8
    assert [each.progress for each in last] == [before.progress]


def test_a_step_that_hangs_stops_the_loop_and_not_the_beats(server_end):
    known = facts(max_rows=2, max_context=CONTEXT)
    runner = StuckRunner(known, random.Random(1), lost_at=1)
    board, reader = WorkerBoard(server_end.board), BoardReader(server_end.board)
    board.start()
    worker = Worker(Engine(runner, known), server_end.other_end, board)
    running = threading.Thread(target=worker.run)
    running.start()
    wait_for(lambda: reader.pulse().loops >= 2)  # an idle worker comes around, too
    server_end.engine.add(submission("stuck", [1, 2], max_tokens=3))
    heartbeat = Heartbeat(HeartbeatLimits(step_s=0.6), is_loading=False)
    while not heartbeat.is_hung:
        time.sleep(0.05)
        heartbeat.look(reader.pulse(), after_s=0.05)
    assert "in one step" in heartbeat.trouble
    before = reader.pulse().beats
    wait_for(lambda: reader.pulse().beats > before)
    runner.released.set()
    running.join(120)
    assert not running.is_alive()


def test_a_running_request_does_not_wait_until_a_crowd_has_been_received(server_end, monkeypatch):
    monkeypatch.setattr(worker_process, "MAX_RECEIVE_S", 0.0)
    submitted = [submission(f"r{i}", [1 + i, 2], max_tokens=6) for i in range(6)]
    for each in submitted:
        server_end.engine.add(each)
    worker = worker_behind(server_end)
    worker._receive_all()
    assert worker._engine.stats.queue.waiting == 1
    updates = []
    while server_end.engine.num_in_flight:
        worker._step()
        worker._receive_all()
        updates += server_end.receive_all()
    answers = answers_of(updates)
    assert answers == {
        each.request_id: (expected_output(each, CONTEXT), "length") for each in submitted
    }


def test_a_worker_that_ends_frees_the_ports_of_its_kv_events(server_end):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = KVEventsConfig(publisher="zmq", endpoint=f"tcp://*:{port}")
    known = facts(max_rows=2, max_context=CONTEXT)
    engine = Engine(LostRunner(known, random.Random(1), lost_at=1), known)
    publishers = open_kv_events(config, engine.caches)
    worker = Worker(engine, server_end.other_end, WorkerBoard(server_end.board), publishers)
    engine.add(submission("a", [5] * 9))
    assert worker.run() == worker_process.DEVICE_LOST
    cache = PrefixCache(num_pages=4, page_size=4)
    KVEventPublisher(config, cache.record_events()).close()  # raises if the port is in use
