"""Processes of other ranks, started before this process imports torch: all import it at once.

A rank imports torch and then waits for its job, so its start takes no time after that of rank 0.
"""

import contextlib
import os
import socket
import subprocess
import sys

from outrider.config.engine_config import ParallelConfig


def start_rank_process(fd: int) -> "subprocess.Popen[bytes]":
    """A rank that waits for its job on standard input; its connection to rank 0 is `fd`."""
    return subprocess.Popen(
        [sys.executable, "-m", "outrider.runtime.rank_process", str(fd)],
        pass_fds=[fd],
        stdin=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C at the terminal must not reach it
    )


class WaitingRank:
    """Owns a rank of this machine that has no job yet, and the connection to it."""

    def __init__(self) -> None:
        self.connection, theirs = socket.socketpair()
        with theirs:
            self.process = start_rank_process(theirs.fileno())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        self.connection.close()


class EarlyRanks:
    """Owns the ranks that have no job yet."""

    def __init__(self, num: int = 0) -> None:
        self._waiting = [WaitingRank() for _ in range(num)]

    def take(self) -> WaitingRank:
        """A rank that waits, or a new one. The caller owns it."""
        return self._waiting.pop() if self._waiting else WaitingRank()

    def close(self) -> None:
        """End those that were not taken."""
        while self._waiting:
            self._waiting.pop().close()


def num_early_ranks(parallel: ParallelConfig) -> int:
    """Ranks of this machine besides rank 0, and no more than there are cores for.

    The model is not known yet: the number of ranks may be a mistake.
    """
    if parallel.nodes.backend == "ray":
        return 0
    others = parallel.tensor * parallel.data // parallel.nodes.num - 1
    return min(others, max(len(os.sched_getaffinity(0)) - 1, 1))
