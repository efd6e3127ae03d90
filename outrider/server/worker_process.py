"""The engine's process: hears the front, steps the engine, and reports what each step brought."""

import logging
import os
import sys
import threading
from pathlib import Path

import msgspec
import zmq

from outrider.config.threads import choose_wait_policy
from outrider.engine.engine import Engine
from outrider.errors import OutriderError
from outrider.server.process_heap import bound_code, give_back
from outrider.server.worker_messages import (
    Abort,
    AskFlush,
    Down,
    Loading,
    News,
    Ready,
    StatsReply,
    Submit,
    Unable,
    Up,
    WorkerOrder,
    decode_down,
    encode,
)
from outrider.wire.submission import NOTHING_YET, RequestUpdate, Submission

LOST = 75  # the exit code of a worker whose device does not answer any more
UNABLE = 78  # and of one that cannot load its model
_REST_MS = 200  # without anything to do, before memory is tidied
_LAST_WORDS_MS = 1000  # that they may take to leave

_log = logging.getLogger(__name__)


class Worker:
    """Owns the engine and its end of the socket."""

    def __init__(self, engine: Engine, socket: "zmq.Socket[bytes]") -> None:
        self._engine = engine
        self._socket = socket
        self._is_tidy = True

    def run(self) -> int:
        """Work until the engine stops for good; returns the exit code."""
        while not self._engine.is_over:
            self._hear()
            if self._engine.has_work:
                self._step()
        return LOST

    def _hear(self) -> None:
        """Take all that the front has said; wait for it only when there is nothing else to do."""
        if not self._engine.has_work:
            self._tidy()
            self._obey(decode_down(self._socket.recv()))
        while self._socket.poll(0):
            self._obey(decode_down(self._socket.recv()))

    def _tidy(self) -> None:
        """Steps of ever other sizes leave holes in the heap: give them back once it is quiet."""
        if not self._is_tidy and not self._socket.poll(_REST_MS):
            give_back()
            self._is_tidy = True

    def _obey(self, message: Down) -> None:
        if isinstance(message, Submit):
            self._add(message.submission)
        elif isinstance(message, Abort):
            self._engine.abort(message.request_id)
        else:
            if isinstance(message, AskFlush):
                self._engine.flush()
            self._say(StatsReply(message.ticket, self._engine.stats))

    def _add(self, submission: Submission) -> None:
        """Queue a request. The front has checked it, but by the sizes of the first worker."""
        try:
            self._engine.add(submission)
        except OutriderError as error:
            refusal = RequestUpdate(
                submission.request_id, (), (), "error", NOTHING_YET, reason=str(error)
            )
            self._say(News((refusal,), self._engine.stats))

    def _step(self) -> None:
        """Run a step and report it. Of who waited while the device was lost nothing is said: the
        front keeps them for the next worker.
        """
        updates = self._engine.step()
        self._is_tidy = False
        told = tuple(
            [each for each in updates if each.request_id not in self._engine.can_run_again]
        )
        if told:
            self._say(News(told, self._engine.stats))

    def _say(self, message: Up) -> None:
        self._socket.send(encode(message))


def main() -> int:
    """Load what standard input says and serve it; the exit code tells the supervisor why it ended.

    Standard input stays open as long as the front lives.
    """
    logging.basicConfig(format="worker: %(levelname)s %(name)s: %(message)s")
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=WorkerOrder)
    threading.Thread(target=_leave_with_the_front, daemon=True).start()
    socket = zmq.Context().socket(zmq.PAIR)
    socket.set_hwm(0)  # the front reads at all times; its own streams are what is bounded
    socket.connect(order.endpoint)
    try:
        worker = _load(order, socket)
    except OutriderError as error:
        socket.send(encode(Unable(str(error))))
        code = UNABLE
    else:
        code = worker.run()
    socket.context.destroy(linger=_LAST_WORDS_MS)  # a lost device ends the process soon after
    return code


def _load(order: WorkerOrder, socket: "zmq.Socket[bytes]") -> Worker:
    choose_wait_policy()
    bound_code()
    from outrider.frontend.build_engine import build_engine  # torch: after what it reads once

    def on_progress(done: int, total: int) -> None:
        socket.send(encode(Loading(done, total)))

    engine = build_engine(Path(order.folder), order.config, on_progress)
    socket.send(encode(Ready(engine.facts)))
    return Worker(engine, socket)


def _leave_with_the_front() -> None:
    """A front that was killed cannot say goodbye, but its end of the pipe closes."""
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
