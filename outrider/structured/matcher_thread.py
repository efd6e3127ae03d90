"""A thread that runs the matchers of rows, and is left behind when a matcher does not return.

xgrammar cannot be interrupted, but it releases the GIL, so the step can go on without it.
"""

import math
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

_LOOK_S = 0.02  # how often a step that waits looks at the CPU time of the matcher


@dataclass(frozen=True, slots=True)
class MatcherTask:
    """One use of the matcher of one row."""

    run: Callable[[torch.Tensor], None]  # with the masks of all rows [n, words] int32
    own: slice  # the masks that it writes
    limit_s: Callable[[], float]  # of CPU time, asked when the task begins


@dataclass(frozen=True, slots=True)
class _Running:
    """The task that the thread runs now."""

    index: int
    end_s: float  # when its time is over, on the CPU clock of the thread


_NOT_BEGUN = _Running(0, math.inf)


class MatcherThread:
    """Owns the current thread, and knows the threads that were left behind."""

    def __init__(self) -> None:
        self._current = _Thread()
        self._left: list[_Thread] = []
        self._finalizer = weakref.finalize(self, self._current.stop)

    @property
    def num_left_behind(self) -> int:
        """Threads whose matcher has still not returned. Each keeps a CPU core busy."""
        self._left = [each for each in self._left if each.is_alive]
        return len(self._left)

    def run(self, tasks: Sequence[MatcherTask], masks: torch.Tensor) -> int:
        """Run tasks in order, and return how many ended.

        If some did not, the first of those exceeded its time. It may still write to `masks` at any
        later time, and its matcher must not be used again. The tasks after it were not begun.
        """
        num_done = self._current.run(tasks, masks)
        if num_done < len(tasks):
            self._left.append(self._current)
            self._finalizer.detach()
            self._current = _Thread()
            self._finalizer = weakref.finalize(self, self._current.stop)
        return num_done


class _Thread:
    """One thread and the queues to and from it. It is a daemon: an exit does not wait for it."""

    def __init__(self) -> None:
        self._batches: queue.SimpleQueue[tuple[Sequence[MatcherTask], torch.Tensor] | None]
        self._batches = queue.SimpleQueue()
        self._ends: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # held to begin a task, and to leave the thread behind
        self._running = _NOT_BEGUN
        self._is_left = False
        self._thread = threading.Thread(target=self._serve, name="matcher", daemon=True)
        self._thread.start()
        assert self._thread.ident is not None, "the thread has started"
        self._clock = time.pthread_getcpuclockid(self._thread.ident)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        self._batches.put(None)

    def run(self, tasks: Sequence[MatcherTask], masks: torch.Tensor) -> int:
        self._running = _NOT_BEGUN  # the thread waits, so it does not write this
        self._batches.put((tasks, masks))
        while True:
            try:
                error = self._ends.get(timeout=_LOOK_S)
            except queue.Empty:
                with self._lock:
                    if time.clock_gettime(self._clock) > self._running.end_s:
                        self._is_left = True
                        return self._running.index
            else:
                if error is not None:
                    raise error
                return len(tasks)

    @torch.inference_mode()
    def _serve(self) -> None:
        while not self._is_left and (batch := self._batches.get()) is not None:
            try:
                self._run_all(*batch)
            except BaseException as error:  # the step raises it
                self._ends.put(error)
            else:
                self._ends.put(None)
            del batch  # a thread that waits must not keep matchers alive

    def _run_all(self, tasks: Sequence[MatcherTask], masks: torch.Tensor) -> None:
        for index, task in enumerate(tasks):
            with self._lock:
                if self._is_left:
                    return
                self._running = _Running(index, time.thread_time() + task.limit_s())
            task.run(masks)
