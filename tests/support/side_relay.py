"""Stands between decode and prefill engines, and strikes in the middle of a transfer."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

_PIECE = 4096


class SideRelay:
    """Owns a listener that passes the side channel on to a prefill engine, byte for byte."""

    def __init__(self, port: int) -> None:
        self._prefill = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._strike: Callable[[], None] | None = None
        self._is_moment: Callable[[bytes, int], bool] = lambda data, passed: False
        self._arms = 0
        self.has_struck = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, strike: Callable[[], None], is_moment: Callable[[bytes, int], bool]) -> None:
        """Call `strike` once, before bytes of a prefill engine are passed on that are the moment.

        `is_moment` gets them, and how many came on their connection since this call.
        """
        with self._lock:
            self.has_struck.clear()
            self._strike, self._is_moment = strike, is_moment
            self._arms += 1

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                decode, _ = self._listener.accept()
                threading.Thread(target=self._relay, args=(decode,), daemon=True).start()

    def _relay(self, decode: socket.socket) -> None:
        with decode:
            try:
                prefill = socket.create_connection(self._prefill)
            except OSError:
                return  # it is gone; the decode engine sees its end
            with prefill:
                there = threading.Thread(target=_pump, args=(decode, prefill, lambda data: None))
                there.start()
                _pump(prefill, decode, self._watcher())
                there.join()

    def _watcher(self) -> Callable[[bytes], None]:
        """Looks at the bytes of one connection."""
        passed, arms = 0, 0

        def watch(data: bytes) -> None:
            nonlocal passed, arms
            with self._lock:
                passed, arms = (passed if arms == self._arms else 0) + len(data), self._arms
                if self._strike is not None and self._is_moment(data, passed):
                    self._strike()
                    self._strike = None
                    self.has_struck.set()

        return watch

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _pump(source: socket.socket, sink: socket.socket, watch: Callable[[bytes], None]) -> None:
    with suppress(OSError):  # an end may leave at any time
        while data := source.recv(_PIECE):
            watch(data)
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
