"""A compiled grammar in a matcher process, as the engine uses it."""

import os
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
from outrider.structured.shared_masks import SharedMasks
from outrider.structured.wait_for_input import wait_for_input

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

    def __init__(self, text: str, fork: Callable[[], socket.socket], masks: SharedMasks) -> None:
        self._text = text
        self._fork = fork
        self._masks = masks
        self._dropped: list[int] = []
        self._holders: set[int] = set()  # running rows that have this grammar
        self._process: _MatcherProcess | None = self._start(LOAD_TIMEOUT_S)  # until it ends
        self._load_s = self._process.loaded.load_s
        self.generation = 0
        self.used_s = time.monotonic()

    @property
    def is_alive(self) -> bool:
        return self._process is not None and not self._process.has_ended

    @property
    def is_in_use(self) -> bool:
        """Whether a running row has this grammar. In a long prefill, no step uses the process."""
        return bool(self._holders)

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

    def hold(self, row: int) -> None:
        """Keep the process for a row that runs."""
        self._holders.add(row)

    def release(self, row: int) -> None:
        """The row does not run any more, or not now."""
        self._holders.discard(row)

    def drop(self, row: int) -> None:
        """Forget a row, with the next step."""
        self.release(row)
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
            row = int(self._masks.running[self._process.slot])
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
        channel = self._fork()
        try:
            return _MatcherProcess(channel, self._masks, self._text, timeout_s)
        except BaseException:
            channel.close()
            raise


class _MatcherProcess:
    """Owns the socket to one matcher process, and its slot. The process ends with the socket."""

    def __init__(
        self, channel: socket.socket, masks: SharedMasks, text: str, timeout_s: float
    ) -> None:
        self._channel = channel
        self.slot = masks.take_slot()
        self._close = weakref.finalize(self, _close_channel, channel, masks, self.slot)
        masks.running[self.slot] = NO_ROW
        rows, words = masks.bits.shape
        channel.settimeout(timeout_s)
        send_message(
            channel, LoadGrammar(text=text, slot=self.slot, mask_rows=rows, mask_words=words)
        )
        self.loaded: GrammarLoaded = receive_message(channel)
        channel.settimeout(ANSWER_TIMEOUT_S)

    @property
    def has_ended(self) -> bool:
        """Whether an idle process has ended. It sends nothing, so only its end can be read."""
        return wait_for_input(self._channel, timeout_s=0)

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
            wait_for_input(self._channel, ANSWER_TIMEOUT_S)
        self._close()


def _close_channel(channel: socket.socket, masks: SharedMasks, slot: int) -> None:
    channel.close()
    masks.free_slot(slot)
