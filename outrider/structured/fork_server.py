"""The owner's side of the fork server, from which matcher processes are forked."""

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable

from outrider.config.install_hint import install_hint
from outrider.errors import CapacityError, RequestError
from outrider.structured.matcher_messages import receive_message, send_message
from outrider.wire.grammar_spec import Vocabulary

START_TIMEOUT_S = 120.0  # to import the library on a busy machine

# numpy starts threads when it is imported, and threads do not live on in a fork.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}


class ForkServer:
    """Owns the process, started when first needed and again if it has died."""

    def __init__(self, vocabulary: Callable[[], Vocabulary]) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()  # held while the process starts
        self._process: _ServerProcess | None = None  # until the first grammar, and after `close`

    def start(self) -> None:
        """Start the process unless it runs. Takes seconds: the library is imported."""
        with self._lock:
            if self._process is None or not self._process.is_alive:
                self._process = _start_server(self._vocabulary())

    def fork(self, masks_fd: int) -> socket.socket:
        """The socket of a new matcher process. Raises OSError if the server has ended."""
        process = self._process
        if process is None:
            raise ConnectionError("the fork server has not been started")
        return process.fork(masks_fd)

    def close(self) -> None:
        """End the server; matcher processes end when their sockets are closed."""
        with self._lock:
            if self._process is not None:
                self._process.close()
                self._process = None


def _start_server(vocabulary: Vocabulary) -> "_ServerProcess":
    if importlib.util.find_spec("xgrammar") is None:
        raise RequestError(f"structured output needs xgrammar: {install_hint('grammar')}")
    try:
        return _ServerProcess(vocabulary)
    except (OSError, EOFError) as error:
        raise CapacityError("the process that matches grammars does not start; see the log") from (
            error
        )


class _ServerProcess:
    """Owns one fork server and the socket to it. The server ends when the socket is closed."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "outrider.structured.matcher_process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **_ONE_THREAD},
                start_new_session=True,  # Ctrl-C at the terminal must not reach it
            )
        self._close = weakref.finalize(self, _end, self._control, self._process)
        self._control.settimeout(START_TIMEOUT_S)
        try:
            send_message(self._control, vocabulary)
            receive_message(self._control)
        except (OSError, EOFError):
            self._close()
            raise

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def fork(self, masks_fd: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"f"], [theirs.fileno(), masks_fd])
            except OSError:
                ours.close()
                raise
        return ours

    def close(self) -> None:
        self._close()


def _end(control: socket.socket, process: "subprocess.Popen[bytes]") -> None:
    control.close()
    with contextlib.suppress(OSError):
        process.kill()
    process.wait()
