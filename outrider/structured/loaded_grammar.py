"""A compiled grammar in a matcher process, as the engine uses it."""

import os
import select
import signal
import socket
import time
import weakref
from collections.abc import Callable

from outrider.structured.matcher_messages import (
    NO_ROW,
    FailedRows,
    GrammarLoaded,
    LoadGrammar,
    RowTask,
    StepTasks,
    receive_message,
    send_message,
)
from outrider.structured.shared_masks import NUM_SLOTS, SharedMasks

# The kernel ends a process that uses too much CPU time. This is for one that gets none.
ANSWER_TIMEOUT_S = 10.0
LOAD_TIMEOUT_S = 60.0
MAX_RELOAD_S = 0.05  # a step waits for a process that is replaced, so not for large grammars


class MatcherEndedError(Exception):
    """The process ended in the middle of a step."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row  # the one that was matched, or NO_ROW


class LoadedGrammar:
    """Owns the matcher process of one grammar, which is replaced after it ended.

    A new process knows no rows. `generation` tells whether a row must be sent again as a whole.
    """

    def __init__(
        self, text: str, fork: Callable[[], socket.socket], masks: SharedMasks, *, slot: int
    ) -> None:
        self._text = text
        self._fork = fork
        self._masks = masks
        self._slot = slot % NUM_SLOTS
        self._dropped: list[int] = []
        self._process: _MatcherProcess | None = self._start(LOAD_TIMEOUT_S)  # until it ends
        self._load_s = self._process.loaded.load_s
        self.generation = 0
        self.used_s = time.monotonic()

    @property
    def is_alive(self) -> bool:
        return self._process is not None and not self._process.has_ended

    @property
    def pid(self) -> int:
        """Of the process, or 0 if it has ended."""
        return self._process.loaded.pid if self._process is not None else 0

    def prepare(self) -> None:
        """Replace the process if it has ended. Raises OSError or EOFError if that fails."""
        self.used_s = time.monotonic()
        if self._process is None:
            if self._load_s > MAX_RELOAD_S:
                raise OSError("the grammar is too large to be loaded again during a step")
            self._dropped.clear()
            self._process = self._start(ANSWER_TIMEOUT_S)
            self.generation += 1

    def drop(self, row: int) -> None:
        """Forget a row, with the next step."""
        self._dropped.append(row)

    def post(self, tasks: list[RowTask], max_s: float) -> None:
        """Start to match the rows of a step, after `prepare`."""
        assert self._process is not None, "prepare comes first"
        step = StepTasks(tasks=tasks, dropped=self._dropped, max_s=max_s)
        self._dropped = []
        self._process.post(step)

    def collect(self) -> FailedRows:
        """Wait for the masks of the step. Raises MatcherEndedError if the process ended."""
        assert self._process is not None, "prepare and post come first"
        try:
            return self._process.collect()
        except (EOFError, ConnectionError):
            row = int(self._masks.running[self._slot])
        except TimeoutError:  # it was stopped, or gets no CPU: not the fault of a row
            row = NO_ROW
        self.close()
        raise MatcherEndedError(row)

    def close(self) -> None:
        """End the process. It is started again if a row still needs it."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def _start(self, timeout_s: float) -> "_MatcherProcess":
        rows, words = self._masks.bits.shape
        message = LoadGrammar(text=self._text, slot=self._slot, mask_rows=rows, mask_words=words)
        self._masks.running[self._slot] = NO_ROW
        return _MatcherProcess(self._fork(), message, timeout_s)


class _MatcherProcess:
    """Owns the socket to one matcher process. The process ends when the socket is closed."""

    def __init__(self, channel: socket.socket, message: LoadGrammar, timeout_s: float) -> None:
        self._channel = channel
        self._close = weakref.finalize(self, channel.close)
        channel.settimeout(timeout_s)
        send_message(channel, message)
        self.loaded: GrammarLoaded = receive_message(channel)
        channel.settimeout(ANSWER_TIMEOUT_S)

    @property
    def has_ended(self) -> bool:
        """Whether an idle process has ended. It sends nothing, so only its end can be read."""
        return bool(select.select([self._channel], [], [], 0)[0])

    def post(self, step: StepTasks) -> None:
        try:
            send_message(self._channel, step)
        except OSError:
            return  # `collect` sees the end of the process

    def collect(self) -> FailedRows:
        answer: FailedRows = receive_message(self._channel)
        return answer

    def end(self) -> None:
        """Kill the process and wait until it is gone: it must not write to masks any more."""
        if not self.has_ended:
            os.kill(self.loaded.pid, signal.SIGKILL)
            select.select([self._channel], [], [], ANSWER_TIMEOUT_S)
        self._close()
