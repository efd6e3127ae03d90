"""The process that trains a served head: it collects texts, and computes while no request runs."""

import logging
import os
import sys
import time
from pathlib import Path

import msgspec
import zmq

from outrider.config.owner_life import exit_with_owner, kill_with_owner
from outrider.errors import OutriderError
from outrider.hub.learn_folder import LearnFolder
from outrider.server.learner_messages import (
    Busy,
    FromLearner,
    HeadInUse,
    HeadOffer,
    HeadRefused,
    Idle,
    LearnerConfig,
    LearnerReady,
    LearnerRefused,
    LearnerState,
    LearnStatus,
    LearnText,
    SetPaused,
    StopLearning,
    ToLearner,
    decode_to_learner,
    encode_learner,
)

_QUIET_S = 0.5  # without a request, before training begins: another one may follow at once
_POLL_MS = 200  # between two looks at the clock
_REPORT_S = 0.2  # between two reports
_LOOK_S = 0.002  # between two looks for messages inside of a step
_NICENESS = 19  # the engine has the cores first, also while the last small step ends
_LINGER_MS = 1000  # that the last messages have to be sent

_log = logging.getLogger("outrider.train.learn_process")  # not __name__: it runs as __main__


class LearnerProcess:
    """Owns the learner and its end of the socket."""

    def __init__(self, config: LearnerConfig, socket: "zmq.Socket[bytes]") -> None:
        from outrider.train.learner import Learner  # imports torch

        folder = LearnFolder(path=Path(config.learn_folder), start=Path(config.head_folder))
        self._learner = Learner(
            folder,
            Path(config.target_folder),
            device=config.device,
            buffer_bytes=config.buffer_bytes,
        )
        self._learner.use(config.version)
        self._socket = socket
        self._idle_since_s: float | None = None  # while a request is there
        self._is_paused = False
        self._offered = 0  # the version that the engine has been offered; 0: none
        self._is_in_round = False
        self._is_stopped = False
        self._num_texts = 0  # received
        self._status = LearnStatus(version=config.version)
        self._reported_s = 0.0
        self._looked_s = 0.0

    def run(self) -> int:
        """Learn until the server ends; returns the exit code."""
        self._send(LearnerReady())
        while not self._is_stopped:
            self._receive(wait_ms=0 if self._may_begin else _POLL_MS)
            self._report()
            if self._may_begin:
                self._run_round()
        return 0

    @property
    def _may_compute(self) -> bool:
        quiet_s = 0.0 if self._idle_since_s is None else time.monotonic() - self._idle_since_s
        return quiet_s >= _QUIET_S and not self._is_paused

    @property
    def _may_begin(self) -> bool:
        return self._may_compute and not self._offered and self._learner.has_work

    def _run_round(self) -> None:
        from outrider.train.learner import RoundCancelled

        self._is_in_round = True
        try:
            result = self._learner.run_round(self._before_step, self._between_ops)
        except RoundCancelled:
            return
        finally:
            self._is_in_round = False
        self._status = msgspec.structs.replace(
            self._status,
            acceptance_before=result.before.acceptance,
            acceptance_after=result.after.acceptance,
        )
        _log.info(
            "round %d: %.3f tokens per round before, %.3f after%s",
            self._learner.num_rounds,
            result.before.acceptance,
            result.after.acceptance,
            f": version {result.version}" if result.version else ", not better",
        )
        self._report(is_due=True)
        if result.version:
            self._offered = result.version
            self._send(HeadOffer(result.version))

    def _before_step(self) -> None:
        """Take messages in; wait while a request is there. Called before each piece of work."""
        from outrider.train.learner import RoundCancelled

        version = self._learner.version
        self._wait_for_idle()
        if self._is_stopped or self._learner.version != version:
            raise RoundCancelled
        self._report()

    def _between_ops(self) -> None:
        """The same inside of a step, which is not cancelled but by the end of the process."""
        from outrider.train.learner import RoundCancelled

        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        self._wait_for_idle()
        if self._is_stopped:
            raise RoundCancelled

    def _wait_for_idle(self) -> None:
        """Take messages in, until no request has been there for a while."""
        self._receive(wait_ms=0)
        while not self._may_compute and not self._is_stopped:
            self._report()
            self._receive(wait_ms=_POLL_MS)

    def _receive(self, *, wait_ms: int) -> None:
        """Handle the messages that have arrived; wait for the first one."""
        while self._socket.poll(wait_ms):
            self._handle(decode_to_learner(self._socket.recv()))
            wait_ms = 0

    def _handle(self, message: ToLearner) -> None:
        if isinstance(message, LearnText):
            self._num_texts += 1
            self._learner.buffer.add(message.tokens, message.num_prompt, message.temperature)
        elif isinstance(message, Busy):
            self._idle_since_s = None
        elif isinstance(message, Idle):
            self._idle_since_s = time.monotonic()
        elif isinstance(message, SetPaused):
            self._is_paused = message.is_paused
        elif isinstance(message, HeadInUse):
            self._learner.use(message.version)
            self._offered = 0
        elif isinstance(message, HeadRefused):
            _log.warning("version %d is not used: %s", message.version, message.reason)
            self._offered = 0
        elif isinstance(message, StopLearning):
            self._is_stopped = True

    def _report(self, *, is_due: bool = False) -> None:
        """Send the status if it has changed, but not too often."""
        now_s = time.monotonic()
        if not is_due and now_s - self._reported_s < _REPORT_S:
            return
        learner = self._learner
        status = msgspec.structs.replace(
            self._status,
            state=self._state(),
            version=learner.version,
            texts=self._num_texts,
            buffer_bytes=learner.buffer.num_bytes,
            buffer_texts=len(learner.buffer),
            rounds=learner.num_rounds,
            steps=learner.num_steps,
        )
        if status != self._status or is_due:
            self._send(status)
        self._status, self._reported_s = status, now_s

    def _state(self) -> LearnerState:
        if self._is_paused:
            return "paused"
        return "training" if self._is_in_round and self._may_compute else "waiting"

    def _send(self, message: FromLearner) -> None:
        self._socket.send(encode_learner(message))


def run_learner() -> int:
    """Train the head that standard input names; returns the exit code.

    Standard input stays open as long as the server lives.
    """
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=LearnerConfig)
    config.log.install("learner")
    os.nice(_NICENESS)
    kill_with_owner(sys.stdin.fileno())
    exit_with_owner(sys.stdin.fileno())
    socket = zmq.Context().socket(zmq.PAIR)
    socket.connect(config.endpoint)
    try:
        return LearnerProcess(config, socket).run()
    except OutriderError as error:
        socket.send(encode_learner(LearnerRefused(str(error))))
        return 1
    finally:
        socket.context.destroy(linger=_LINGER_MS)


if __name__ == "__main__":
    sys.exit(run_learner())
