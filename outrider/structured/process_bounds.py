"""Bounds that a process sets for itself. Its owner sees that it ended."""

import resource
import signal


def bound_memory(num_bytes: int) -> None:
    """Let this process allocate at most this much more than it holds now."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        held = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + num_bytes, held + num_bytes))


def bound_cpu(seconds: float) -> None:
    """Let the kernel kill this process after so much more CPU time; 0 removes the bound.

    CPU time, not wall time: a busy machine is not the grammar's fault. The default action of
    SIGPROF ends a process even inside a library that cannot be interrupted.
    """
    signal.setitimer(signal.ITIMER_PROF, seconds)
