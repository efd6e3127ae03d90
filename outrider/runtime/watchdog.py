"""Logs a step that is waited for too long: a device that hangs raises no error by itself."""

import logging
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from outrider.step.shape import StepShape

TIMEOUT_S = 60.0  # the longest steps take seconds; compiling all kernels takes tens of seconds
LOOKS_PER_TIMEOUT = 4

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Wait:
    """The step that the host waits for."""

    step: int
    shape: StepShape
    since_s: float


class Watchdog:
    """Owns a thread that looks at the step waited for. The thread ends with the watchdog."""

    def __init__(
        self, *, timeout_s: float = TIMEOUT_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._wait: _Wait | None = None  # replaced as a whole, so without a lock
        self._has_thread = False
        self._reported_step = 0  # steps count from 1
        self.num_hung = 0  # steps that were reported

    def begin(self, step: int, shape: StepShape) -> None:
        """From now on this step is waited for."""
        self._wait = _Wait(step, shape, self._clock())
        if not self._has_thread:
            self._has_thread = True
            self._start()

    def end(self) -> None:
        """Nothing is waited for."""
        self._wait = None

    def look(self) -> None:
        """Report the step that is waited for if it is overdue, once."""
        wait = self._wait  # `end` may replace it meanwhile
        if wait is None or wait.step == self._reported_step:
            return
        if self._clock() - wait.since_s >= self._timeout_s:
            self._reported_step = wait.step
            self.num_hung += 1
            _log.error(
                "step %d has been waited for longer than %g s, so the device seems to hang: "
                "look for an Xid error in dmesg, and restart the process if it stays (%s)",
                wait.step,
                self._timeout_s,
                wait.shape,
            )

    def _start(self) -> None:
        ended = threading.Event()
        weakref.finalize(self, ended.set)
        every_s = self._timeout_s / LOOKS_PER_TIMEOUT
        arguments = (weakref.ref(self), ended, every_s)
        threading.Thread(target=_watch, args=arguments, name="watchdog", daemon=True).start()


def _watch(watchdog: weakref.ref[Watchdog], ended: threading.Event, every_s: float) -> None:
    while not ended.wait(every_s):
        _look(watchdog())


def _look(watchdog: Watchdog | None) -> None:
    """Look once. The thread holds the watchdog only here, so the watchdog can be freed."""
    if watchdog is not None:
        watchdog.look()
