"""Folders that appear complete or not at all, whatever happens while they are written."""

import errno
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outrider.errors import ConfigError

_MARK = ".partial-"


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A fresh folder beside `target` that becomes `target` when the body ends well, else vanishes.

    When two processes stage the same target the first to end wins and the other drops its copy.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(target.parent)
        partial = target.parent / f".{target.name}{_own_mark()}"
        try:
            partial.mkdir()
            yield partial
            _publish(partial, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)  # nothing is left of it after success
    except OSError as error:
        raise ConfigError(
            f"cannot write {target}: {error.strerror}; make room or give access there, "
            "or set OUTRIDER_CACHE to another folder"
        ) from error


def _publish(partial: Path, target: Path) -> None:
    try:
        os.replace(partial, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise  # otherwise another process was first, with the same content


def _own_mark() -> str:
    # Hosts may share a cache, and only this host can tell whether its processes are alive.
    # The random end keeps threads of one process apart.
    return f"{_MARK}{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def _remove_stale(parent: Path) -> None:
    """Remove what processes of this host left behind when they were killed."""
    for partial in parent.glob(f".*{_MARK}{socket.gethostname()}-*-*"):
        pid = partial.name.split("-")[-2]
        if pid.isdigit() and not _is_alive(int(pid)):
            shutil.rmtree(partial, ignore_errors=True)  # another process may be removing it too


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # it lives, and belongs to another user
    return True
