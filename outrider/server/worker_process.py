"""The worker process: receives requests, steps the engine, and sends what each step emitted."""

import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import zmq

from outrider.config.early_ranks import EarlyRanks, num_early_ranks
from outrider.config.owner_life import exit_with_owner, kill_with_owner
from outrider.config.process_heap import bound_code_cache, release_free_memory, resident_bytes
from outrider.config.threads import choose_wait_policy
from outrider.engine.parallel_engine import AnyEngine
from outrider.errors import OutriderError
from outrider.server.kv_event_publisher import KVEventPublisher, open_kv_events
from outrider.server.worker_board import WorkerBoard
from outrider.server.worker_messages import (
    Abort,
    AdapterReply,
    AdapterRequest,
    FlushRequest,
    FromWorker,
    HeadRequest,
    LoadFailed,
    LoadProgress,
    Ready,
    SleepReply,
    SleepRequest,
    StartOver,
    StatsReply,
    StepFailed,
    StepUpdates,
    Submit,
    ToWorker,
    WakeRequest,
    WorkerConfig,
    decode_to_worker,
    encode,
)
from outrider.wire.adapter import Adapter
from outrider.wire.failure import failure_of
from outrider.wire.submission import NOTHING_YET, RequestUpdate, Submission

DEVICE_LOST = 75  # exit code of a worker whose device does not answer any more
LOAD_FAILED = 78  # exit code of a worker that cannot load its model
MAX_RECEIVE_S = 0.01  # for messages between two steps; a submission takes about 0.1 ms
_IDLE_MS = 200  # without work, before free memory is released and the loop comes around
_LOSS_S = 1.0  # that a worker has to end by itself after the loss of another rank
_LINGER_MS = 1000  # that the last messages have to be sent

_log = logging.getLogger("outrider.server.worker_process")  # not __name__: it runs as __main__


class Worker:
    """Owns the engine and its end of the socket."""

    def __init__(
        self,
        engine: AnyEngine,
        socket: "zmq.Socket[bytes]",
        board: WorkerBoard,
        publishers: Sequence[KVEventPublisher] = (),
    ) -> None:
        self._engine = engine
        self._publishers = publishers
        self._socket = socket
        self._board = board
        engine.watch_steps(board.write_steps)
        self._is_memory_released = True

    def run(self) -> int:
        """Work until the engine stops for good; returns the exit code."""
        try:
            while not self._engine.is_over:
                self._board.note_loop()
                self._engine.tend()
                self._receive_all()
                if self._engine.has_work:
                    self._step()
                for each in self._publishers:
                    each.publish()
        finally:  # the next worker needs the ports
            for each in self._publishers:
                each.close()
        return DEVICE_LOST

    def _receive_all(self) -> None:
        """Handle messages that have arrived; wait for one only if there is nothing to step.

        Those of a call with many prompts take several steps: running requests do not wait for them.
        """
        if not self._engine.has_work:
            self._board.write_steps(())
            if not self._socket.poll(_IDLE_MS):
                self._release_memory()
        end_s = time.monotonic() + MAX_RECEIVE_S
        while self._socket.poll(0):
            self._handle(decode_to_worker(self._socket.recv()))
            if self._engine.has_work and time.monotonic() >= end_s:
                return

    def _release_memory(self) -> None:
        """Steps of many sizes leave holes in the heap: return them when the worker is idle."""
        if not self._is_memory_released:
            release_free_memory()
            self._is_memory_released = True

    def _handle(self, message: ToWorker) -> None:
        if isinstance(message, Submit):
            self._add(message.submission, message.emitted)
        elif isinstance(message, Abort):
            self._engine.abort(message.request_id)
        elif isinstance(message, SleepRequest | WakeRequest | HeadRequest):
            self._send(self._sleep_or_wake(message))
        elif isinstance(message, AdapterRequest):
            self._send(AdapterReply(message.ticket, self._refusal_of(message.adapter)))
        elif not isinstance(message, StartOver):
            if isinstance(message, FlushRequest):
                self._engine.flush()
            self._send(StatsReply(message.ticket, self._engine.stats))

    def _refusal_of(self, adapter: Adapter) -> str:
        """Why the engine cannot use an adapter; empty if it can."""
        try:
            self._engine.check_adapter(adapter)
        except OutriderError as error:
            return str(error)
        return ""

    def _sleep_or_wake(self, message: SleepRequest | WakeRequest | HeadRequest) -> SleepReply:
        began_s, reason = time.monotonic(), ""
        with self._board.loading():
            try:
                if isinstance(message, SleepRequest):
                    self._engine.sleep(message.level)
                elif isinstance(message, HeadRequest):
                    self._engine.use_head(message.folder)
                else:
                    self._engine.wake_up(message.tags)
            except OutriderError as error:
                reason = str(error)
        asleep = tuple(sorted(self._engine.asleep))
        _log.info(
            "%s after %.1f s, %d MB resident%s",
            f"asleep ({', '.join(asleep)})" if asleep else "awake",
            time.monotonic() - began_s,
            resident_bytes() >> 20,
            f": {reason}" * bool(reason),
        )
        return SleepReply(message.ticket, asleep, reason)

    def _add(self, submission: Submission, emitted: tuple[int, ...]) -> None:
        """Queue a request. The server checked it, but against the sizes of the first worker."""
        try:
            self._engine.add(submission, emitted)
        except OutriderError as error:
            refusal = RequestUpdate(
                submission.request_id, (), (), "error", NOTHING_YET, failure=failure_of(error)
            )
            self._send(StepUpdates((refusal,), self._engine.stats))

    def _step(self) -> None:
        """Run a step and send its updates.

        When the device is lost, nothing is sent: the next worker can run every request again.
        """
        num_failed = self._engine.num_failed_steps
        updates = self._engine.step()
        self._is_memory_released = False
        if self._engine.is_over:
            return
        if self._engine.num_failed_steps > num_failed:
            self._start_over(updates)
        elif updates:
            self._send(StepUpdates(updates, self._engine.stats))

    def _start_over(self, failed: Sequence[RequestUpdate]) -> None:
        """A step failed: drop all requests. The server submits them again, some of them alone."""
        self._engine.abort_all()
        reason = failed[0].reason if failed else ""
        ids = tuple([each.request_id for each in failed])
        self._send(StepFailed(ids, reason, self._engine.stats))
        while not isinstance(message := decode_to_worker(self._socket.recv()), StartOver):
            if not isinstance(message, Submit | Abort):
                self._handle(message)

    def _send(self, message: FromWorker) -> None:
        self._socket.send(encode(message))


def run_worker() -> int:
    """Load the model that standard input names and serve it; returns the exit code.

    Standard input stays open as long as the server lives.
    """
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=WorkerConfig)
    config.log.install("worker")
    kill_with_owner(sys.stdin.fileno())
    exit_with_owner(sys.stdin.fileno())
    board = WorkerBoard(Path(config.board))
    board.start()
    socket = zmq.Context().socket(zmq.PAIR)
    socket.set_hwm(0)  # the server always reads; it bounds the streams to its clients itself
    socket.connect(config.endpoint)
    try:
        worker = _load(config, socket, board)
    except OutriderError as error:
        socket.send(encode(LoadFailed(str(error))))
        code = LOAD_FAILED
    else:
        code = worker.run()
    socket.context.destroy(linger=_LINGER_MS)  # a lost device ends the process soon after
    return code


def _load(config: WorkerConfig, socket: "zmq.Socket[bytes]", board: WorkerBoard) -> Worker:
    choose_wait_policy()
    bound_code_cache()
    early = EarlyRanks(num_early_ranks(config.config.parallel))
    # Imports torch, which reads the environment once, so the two calls above come first.
    from outrider.frontend.build_engine import build_engine

    def on_progress(done: int, total: int) -> None:
        socket.send(encode(LoadProgress(done, total)))

    try:
        engine = build_engine(
            Path(config.folder),
            config.config,
            on_progress,
            _exit_with_the_ranks,
            listener_fd=config.listener_fd,
            early=early,
        )
    finally:
        early.close()
    publishers = open_kv_events(config.config.kv_events, engine.caches)
    socket.send(encode(Ready(engine.facts)))
    return Worker(engine, socket, board, publishers)


def _exit_with_the_ranks() -> None:
    """Another rank is lost. The step that runs fails by that, and the worker ends.

    This is for a worker that is idle, or whose device never ends the step.
    """
    time.sleep(_LOSS_S)
    os._exit(DEVICE_LOST)


if __name__ == "__main__":
    sys.exit(run_worker())
