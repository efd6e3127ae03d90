"""A worker in this process, connected to a remote engine by a real socket."""

import random
import threading
import time
from dataclasses import dataclass, field

import pytest
import zmq
from support.paper import PaperRunner, expected_output, facts, submission
from support.served import wait_for

from outrider.engine.engine import Engine
from outrider.server.heartbeat import Heartbeat, HeartbeatLimits
from outrider.server.metrics import Meter
from outrider.server.remote_engine import RemoteEngine
from outrider.server.worker_board import BoardReader, WorkerBoard
from outrider.server.worker_messages import StepUpdates, decode_from_worker, encode
from outrider.server.worker_process import DEVICE_LOST, Worker
from outrider.structured.grammar_cache import NO_GRAMMARS

CONTEXT = 64


@dataclass
class LostRunner(PaperRunner):
    """A device that fails for good at one step; at none if that is 0."""

    lost_at: int = 0

    def submit(self, batch):
        result = super().submit(batch)
        if self.num_steps == self.lost_at:
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
        self.engine = RemoteEngine(known, grammars=NO_GRAMMARS, max_queued=9, meter=Meter("m"))
        self.engine.attach(lambda message: self.socket.send(encode(message)))

    def receive_all(self):
        """Receive all messages of the worker; returns the updates in their order."""
        updates = []
        while self.socket.poll(0):
            message = decode_from_worker(self.socket.recv())
            if isinstance(message, StepUpdates):
                updates += self.engine.receive(message.updates)
        return updates

    def close(self):
        self._context.destroy(linger=0)


@pytest.fixture
def server_end(tmp_path):
    opened = ServerEnd(facts(max_rows=2, max_context=CONTEXT), tmp_path / "board")
    yield opened
    opened.close()


def worker_behind(server_end, *, lost_at=0, **sizes):
    known = facts(**{"max_rows": 2, "max_context": CONTEXT, **sizes})
    engine = Engine(LostRunner(known, random.Random(1), lost_at=lost_at), known)
    return Worker(engine, server_end.other_end, WorkerBoard(server_end.board))


def test_the_queue_outlives_a_worker_whose_device_is_lost(server_end):
    waiting = submission("waits", [3, 4, 5], max_tokens=9)
    for name in ("first", "second"):
        server_end.engine.add(submission(name, [1, 2], max_tokens=9))
    server_end.engine.add(waiting)
    assert worker_behind(server_end, lost_at=3).run() == DEVICE_LOST
    last = {update.request_id: update for update in server_end.receive_all()}
    assert {name: update.finish for name, update in last.items()} == {
        "first": "error",  # the step that failed ran them
        "second": "error",
    }
    assert last["first"].reason.startswith("a step failed with RuntimeError: CUDA error")
    assert server_end.engine.detach() == ()
    server_end.engine.attach(lambda message: server_end.socket.send(encode(message)))
    following = worker_behind(server_end)
    following._receive_all()
    while following._engine.has_work:
        following._step()
    updates = server_end.receive_all()
    assert {update.request_id for update in updates} == {"waits"}
    answer = [token for update in updates for token in update.tokens]
    assert answer == expected_output(waiting, CONTEXT)


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
    assert "the KV cache holds 16" in refused.reason
    answer = [token for each in updates if each.request_id == "small" for token in each.tokens]
    assert answer == expected_output(small, CONTEXT)
    assert server_end.engine.num_in_flight == 0


def test_a_request_is_given_to_two_workers_and_no_third(server_end):
    """It may be what kills them."""
    engine, sent = server_end.engine, []
    engine.add(submission("poison", [1, 2], max_tokens=9))
    assert engine.detach() == ()  # the first worker is lost before it answered
    engine.attach(sent.append)
    assert [message.submission.request_id for message in sent] == ["poison"]
    (last,) = engine.detach()
    assert (last.request_id, last.finish) == ("poison", "error")
    engine.attach(sent.append)
    assert len(sent) == 1


def test_a_request_that_waited_without_a_worker_has_all_its_attempts(server_end):
    engine, sent = server_end.engine, []
    engine.detach()
    engine.add(submission("waits", [1, 2], max_tokens=9))
    engine.attach(sent.append)
    assert engine.detach() == ()
    engine.attach(sent.append)
    assert len(sent) == 2


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
    running.join(30)
    assert not running.is_alive()
