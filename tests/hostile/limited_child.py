"""Runs a function in a forked child with limits of time and memory, and tells how it ended."""

import contextlib
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from outrider.errors import OutriderError

CPU_S, WALL_S = 30, 90
MEMORY_BYTES = 3 * 2**30  # besides what the parent has mapped

_DONE, _REFUSED, _RAISED, _LONG_MESSAGE = 0, 10, 20, 30


def run_limited(function: Callable[[], None], log: Path) -> tuple[str, str]:
    """How the function ended, in one word, and what is wrong with that; "" is well."""
    pid = os.fork()
    if pid == 0:
        code = _RAISED  # also if there is no memory left to say what was raised
        try:
            code = _run_child(function, log)
        finally:
            os._exit(code)
    status = _wait(pid)
    if status is None:
        return "hung", f"does not end within {WALL_S} s"
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return "crashed", f"ended by {name}; its log ends with: {_tail(log)}"
    code = os.WEXITSTATUS(status)
    if code in (_DONE, _REFUSED):
        return ("loaded" if code == _DONE else "refused"), ""
    if code == _LONG_MESSAGE:
        return "refused", f"the message has several lines: {_tail(log)}"
    return "raised", _tail(log)


def _run_child(function: Callable[[], None], log: Path) -> int:
    """The exit code."""
    os.setsid()
    output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", errors="backslashreplace")
    _set_limits()
    try:
        function()
    except OutriderError as error:
        print(f"refused: {str(error)!a}", flush=True)
        return _LONG_MESSAGE if "\n" in str(error) else _REFUSED
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        return _RAISED
    return _DONE


def _set_limits() -> None:
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY_BYTES, mapped + MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _wait(pid: int) -> int | None:
    """The status of the child; None if it had to be killed. Its own children end with it."""
    end, status = time.monotonic() + WALL_S, None
    while status is None and time.monotonic() < end:
        ended, value = os.waitpid(pid, os.WNOHANG)
        if ended:
            status = value
        else:
            time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if status is None:
        os.waitpid(pid, 0)
    return status


def _tail(log: Path) -> str:
    text = log.read_text(errors="replace")[-1500:].strip() if log.is_file() else ""
    return text or "(an empty log: no memory was left to write it)"
