"""Whether a process of this machine still runs."""

import contextlib
import os
import time
from pathlib import Path

LONG_S = 120.0  # nothing that is waited for takes seconds on a quiet machine


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # it ended before or while it was read
        return False
    return state not in "ZX"


def processes_of_this_one() -> list[int]:
    """Children of the process of the test, their children, and so on."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
    found = [os.getpid()]
    for each in found:
        found += [pid for pid, parent in parents.items() if parent == each]
    return found[1:]


def wait_until(happens) -> None:
    deadline_s = time.monotonic() + LONG_S
    while not happens():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def wait_for_end(pid: int) -> None:
    wait_until(lambda: not is_running(pid))


def descendants_of(pid: int) -> list[int]:
    """Children of a process, their children, and so on."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for task in tasks for child in task.read_text().split()]
    return [*children, *(each for child in children for each in descendants_of(child))]
