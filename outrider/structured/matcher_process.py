"""The processes that match grammars. One that takes too long ends, and nothing else does.

A fork server imports xgrammar and waits. For each grammar it forks a process, which loads the
grammar and makes the masks of all rows that have it. Both end when their owner ends.
"""

import contextlib
import gc
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from outrider.structured.grammar_compiler import describe_vocabulary
from outrider.structured.grammar_matcher import MatcherState
from outrider.structured.grammar_state import GrammarState, advance, mask_tree
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
from outrider.structured.process_bounds import bound_cpu, bound_memory
from outrider.structured.shared_masks import SharedMasks
from outrider.wire.failure import FailureKind, RequestFailure

if TYPE_CHECKING:
    import xgrammar

MEMORY_BYTES = 1 << 30  # for matching, besides what the process holds when it is forked
MAX_LOAD_S = 5.0  # of CPU time; an ordinary grammar takes some milliseconds

# CPU time that a row gains in a step, beside the bound that `StepTasks` has.
MAX_NODE_S = 0.002  # a node usually takes 20 to 200 microseconds, by the size of the vocabulary
MAX_TOKEN_S = 0.0001  # an emitted token usually takes 2; a preempted row reads its output again

TOO_SLOW = RequestFailure(
    FailureKind.REQUEST,
    "matching the grammar takes too long or too much memory; make it less ambiguous",
)


def run_fork_server(control: socket.socket) -> None:
    """Fork a process for every socket that comes, until the owner ends."""
    vocabulary = describe_vocabulary(receive_message(control))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended forks leave no zombies
    # No collection may fall into the time of a row, and none may touch the pages that are shared.
    gc.collect()
    gc.disable()
    gc.freeze()
    send_message(control, None)  # ready
    while True:
        data, fds, _, _ = socket.recv_fds(control, 1, 2)
        if not data:
            return
        if os.fork() == 0:
            _run_fork(control, vocabulary, channel_fd=fds[0], masks_fd=fds[1])
        for fd in fds:
            os.close(fd)


def _run_fork(
    control: socket.socket,
    vocabulary: "xgrammar.TokenizerInfo",
    *,
    channel_fd: int,
    masks_fd: int,
) -> None:
    """The life of a forked process. Does not return: the loop above belongs to the server."""
    try:
        control.close()
        serve_grammar(socket.socket(fileno=channel_fd), vocabulary, masks_fd)
    except (EOFError, OSError):  # the owner has ended, or dropped the grammar
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def serve_grammar(
    channel: socket.socket, vocabulary: "xgrammar.TokenizerInfo", masks_fd: int
) -> None:
    """Load a grammar, then make the masks of one step after the other."""
    import xgrammar

    message: LoadGrammar = receive_message(channel)
    masks = SharedMasks(masks_fd, rows=message.mask_rows, words=message.mask_words)
    masks.running[message.slot] = NO_ROW
    bound_memory(MEMORY_BYTES)
    bound_cpu(MAX_LOAD_S)
    compiled = xgrammar.CompiledGrammar.deserialize_json(message.text, vocabulary)
    bound_cpu(0)
    send_message(channel, GrammarLoaded(pid=os.getpid(), load_s=time.process_time()))
    matched = MatchedRows(partial(MatcherState, compiled), masks, message.slot)
    del message
    while True:
        send_message(channel, matched.run(receive_message(channel)))


class MatchedRows:
    """Owns the grammar states of rows, and knows how much of its time each has left.

    Some grammars compile fast but take longer with every token. Other requests must not wait for
    such a grammar: once a row exceeds its time, its request ends.
    """

    def __init__(
        self, make: Callable[[tuple[int, ...]], GrammarState], masks: SharedMasks, slot: int
    ) -> None:
        self._make = make  # the state of an empty text, by the tokens that may end it
        self._masks = masks
        self._slot = slot
        self._states: dict[int, GrammarState] = {}
        self._left_s: dict[int, float] = {}

    def run(self, step: StepTasks) -> FailedRows:
        """Write the masks of a step. If the process ends here, its slot says at which row."""
        for row in step.dropped:
            self._states.pop(row, None)
            self._left_s.pop(row, None)
        failed: FailedRows = {}
        for task in step.tasks:
            self._masks.running[self._slot] = task.row
            try:
                is_slow = self._run_row(task, step.max_s)
            except MemoryError:
                failed[task.row] = TOO_SLOW
            except Exception as error:
                traceback.print_exc()
                reason = f"matching the grammar failed: {error!r}; use another grammar"
                failed[task.row] = RequestFailure(FailureKind.INTERNAL, reason)
            else:
                if is_slow:
                    failed[task.row] = TOO_SLOW
        self._masks.running[self._slot] = NO_ROW
        return failed

    def _run_row(self, task: RowTask, max_s: float) -> bool:
        """Run one row; returns whether it exceeded its time."""
        allowed_s = MAX_NODE_S * len(task.tokens) + MAX_TOKEN_S * len(task.emitted)
        limit_s = min(self._left_s.get(task.row, max_s), max_s) + allowed_s
        began_s = time.process_time()
        bound_cpu(limit_s)
        self._match(task)
        bound_cpu(0)
        self._left_s[task.row] = limit_s - (time.process_time() - began_s)
        return self._left_s[task.row] < 0

    def _match(self, task: RowTask) -> None:
        if task.ends:
            self._states[task.row] = self._make(task.ends)
        state, bits = self._states[task.row], self._masks.bits
        if task.emitted:
            advance(state, task.emitted)
        bits[task.first : task.first + len(task.tokens)] = -1
        mask_tree(state, task.tokens, task.parents, bits, task.first)


if __name__ == "__main__":
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with contextlib.suppress(EOFError, ConnectionError):  # the owner ended while this one started
        run_fork_server(socket.socket(fileno=int(sys.argv[1])))
