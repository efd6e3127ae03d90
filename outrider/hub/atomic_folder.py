"""Folders that appear complete or not at all, even if the process is killed while writing."""

import errno
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outrider.errors import ConfigError

_PARTIAL = ".partial-"


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A new folder beside `target`. It is renamed to `target` when the body succeeds, else deleted.

    If two processes stage the same target, the first to end wins and the other drops its copy.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(target.parent)
        partial = target.parent / f".{target.name}{_own_suffix()}"
        try:
            partial.mkdir()
            yield partial
            _publish(partial, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)  # after success it does not exist any more
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
            raise  # else another process published the same content first


def _own_suffix() -> str:
    # The host name: hosts may share a cache, and a host can only check its own processes.
    # The random part: threads of one process need different names.
    return f"{_PARTIAL}{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def _remove_stale(parent: Path) -> None:
    """Remove partial folders of processes of this host that no longer run."""
    for partial in parent.glob(f".*{_PARTIAL}{socket.gethostname()}-*-*"):
        pid = partial.name.split("-")[-2]
        if pid.isdigit() and not _is_alive(int(pid)):
            shutil.rmtree(partial, ignore_errors=True)  # another process may be removing it too


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # the process runs as another user
    return True
