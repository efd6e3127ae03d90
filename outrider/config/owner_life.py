"""Ties the life of a child process to its owner, in the kernel."""

import fcntl
import os
import signal
import sys
import threading

_F_SETSIG = 10  # of Linux; Python has no name for it


def kill_with_owner(fd: int) -> None:
    """Let the kernel kill this process when the owner's end of a pipe or socket closes.

    A thread that waits for the end cannot do that while this process is stopped, or while a call
    holds the interpreter. Nothing may be sent over `fd` any more: that would kill the process, too.
    Other systems than Linux have only the thread.
    """
    if sys.platform == "linux":
        fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(fd, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)


def exit_with_owner(fd: int) -> None:
    """End this process when the owner's end of a pipe closes; a thread waits for that.

    This is for systems without `kill_with_owner`, and for an owner that ended before that call.
    Without a buffer: its lock would abort the interpreter if this process ends first.
    """
    threading.Thread(target=_wait_and_exit, args=(fd,), daemon=True).start()


def _wait_and_exit(fd: int) -> None:
    while os.read(fd, 4096):
        pass
    os._exit(0)
