"""Turns of threads at one engine: one at a time, and a step of one thread serves all of them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

# How long the thread that ran the last step is expected to come back for the next one. Each thread
# that steps has OpenMP threads of its own, so it is faster if one of them runs all steps.
_RETURN_S = 0.002


class EngineTurns:
    """Owns who uses the engine now. Requests that come or go never wait for more than one step."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holder = 0  # ident of the thread that uses the engine; 0: none
        self._num_waiting = 0  # threads that want to add or abort requests
        self._num_steps = 0
        self._last_stepper = 0

    @property
    def is_mine(self) -> bool:
        """Whether this thread uses the engine now, further up in its stack."""
        return self._holder == threading.get_ident()

    @contextmanager
    def between_steps(self) -> Iterator[None]:
        """The engine for this thread alone, before the next step."""
        try:  # around the wait too: an interrupt may come between it and the body
            self._take_turn()
            yield
        finally:
            self._release()

    @contextmanager
    def step(self) -> Iterator[bool]:
        """True: the caller runs a step now. False: another thread has just run one."""
        try:
            yield self._take_step()
        finally:
            self._release(num_steps=1)

    def _take_turn(self) -> None:
        with self._changed:
            self._num_waiting += 1
            try:
                self._changed.wait_for(lambda: not self._holder)
                self._holder = threading.get_ident()
            finally:
                self._num_waiting -= 1

    def _take_step(self) -> bool:
        me = threading.get_ident()
        with self._changed:
            before = self._num_steps
            if self._last_stepper not in (0, me):
                self._changed.wait_for(lambda: self._num_steps > before, _RETURN_S)
            self._changed.wait_for(
                lambda: self._num_steps > before or not (self._holder or self._num_waiting)
            )
            if self._num_steps > before:
                return False
            self._holder = self._last_stepper = me
            return True

    def _release(self, num_steps: int = 0) -> None:
        """End the turn of this thread, if it has one."""
        with self._changed:
            if self.is_mine:
                self._holder = 0
                self._num_steps += num_steps
                self._changed.notify_all()
