"""What the kernel knows about another process of this machine."""

from pathlib import Path


def is_stopped(pid: int) -> bool:
    """Whether a signal (SIGSTOP) has stopped a process. False where there is no /proc to tell.

    A process that a debugger holds has another state.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] == "T"
