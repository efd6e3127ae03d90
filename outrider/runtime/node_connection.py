"""Connections between machines. Nothing is unpickled before the other end knows the secret."""

import contextlib
import select
import socket
import struct
import time
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any, cast

from outrider.errors import ConfigError
from outrider.runtime.node_messages import NodeMessage

AUTHENTICATE_S = 10.0  # in all, for the secret of a machine that has connected
SIZE = struct.Struct("!i")  # before each message: that of multiprocessing's connections
_RETRY_S = 0.2
# A machine without power closes no connection: after 10 s of silence, three probes, 5 s apart.
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


class Handshake:
    """Short messages before a moment, in the form of multiprocessing's, which has no such limit."""

    def __init__(self, link: socket.socket, end_s: float) -> None:
        self._link = link
        self._end_s = end_s  # of time.monotonic

    def send_bytes(self, message: bytes) -> None:
        self._link.sendall(SIZE.pack(len(message)) + message)

    def recv_bytes(self, most: int) -> bytes:
        (size,) = SIZE.unpack(self._read(SIZE.size))
        if not 0 <= size <= most:
            raise ConnectionError(f"a message of {size} bytes is no handshake")
        return self._read(size)

    def run(self, *parts: Callable[[Any, bytes], None], key: bytes) -> None:
        """Parts of multiprocessing's handshake, one after the other."""
        for part in parts:
            part(cast("Connection[Any, Any]", self), key)

    def _read(self, num_bytes: int) -> bytes:
        read = bytearray(num_bytes)
        left = memoryview(read)
        while left:
            left = left[receive_some(self._link, left, self._end_s) :]
        return bytes(read)


def receive_some(link: socket.socket, left: memoryview, end_s: float) -> int:
    """Fill the beginning of a buffer; how many bytes came. Raises OSError if none came in time."""
    poll = select.poll()  # `select` takes no file numbers above 1023
    poll.register(link, select.POLLIN)
    wait_s = end_s - time.monotonic()
    if wait_s <= 0 or not poll.poll(wait_s * 1000):
        raise TimeoutError("the peer sent no whole message in time")
    num_bytes = link.recv_into(left)
    if not num_bytes:
        raise ConnectionResetError("the peer closed the connection")
    return num_bytes


class NodeConnection:
    """Owns an authenticated socket. `shut` may be called by any thread, and wakes the others."""

    def __init__(self, link: socket.socket) -> None:
        self.socket = link
        self.connection: Connection[NodeMessage, object] = Connection(link.dup().detach())

    @property
    def own_host(self) -> str:
        """The address of this machine, as the other one sees it."""
        host: str = self.socket.getsockname()[0]
        return host

    def shut(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.shut()
        self.forget()

    def forget(self) -> None:
        """Close it in this process only; another one may have inherited it."""
        self.connection.close()
        self.socket.close()


def accept(listener: socket.socket, key: bytes, end_s: float) -> NodeConnection | None:
    """The next machine that knows the secret; None if none came in time."""
    while (left_s := end_s - time.monotonic()) > 0:
        listener.settimeout(left_s)
        try:
            link, _ = listener.accept()
        except TimeoutError:
            return None
        opened = authenticate(link, key)
        if opened is not None:
            return opened
    return None


def authenticate(link: socket.socket, key: bytes) -> NodeConnection | None:
    """A connection that was just accepted; None if the other end does not know the secret."""
    opened, handshake = _open(link), Handshake(link, time.monotonic() + AUTHENTICATE_S)
    try:
        handshake.run(deliver_challenge, answer_challenge, key=key)
    except (AuthenticationError, AssertionError, OSError):
        opened.close()
        return None
    return _authenticated(opened)


def connect(address: tuple[str, int], key: bytes, end_s: float) -> NodeConnection:
    """A connection to machine 0. Raises OSError if nothing listens there."""
    link = socket.create_connection(address, timeout=max(end_s - time.monotonic(), _RETRY_S))
    left_s = max(end_s - time.monotonic(), _RETRY_S)
    opened, handshake = _open(link, left_s), Handshake(link, time.monotonic() + left_s)
    try:
        handshake.run(answer_challenge, deliver_challenge, key=key)
    except AuthenticationError as error:
        opened.close()
        raise ConfigError(
            "machine 0 has another secret; set OUTRIDER_RANKS_KEY to the same one on each"
        ) from error
    except AssertionError as error:
        opened.close()
        raise ConfigError(f"{address[0]}:{address[1]} is no machine 0 of outrider") from error
    except OSError:
        opened.close()
        raise
    return _authenticated(opened)


def connect_soon(address: tuple[str, int], key: bytes, end_s: float) -> NodeConnection:
    """As `connect`, but waits until machine 0 listens."""
    while True:
        try:
            return connect(address, key, end_s)
        except OSError:
            if time.monotonic() + _RETRY_S >= end_s:
                raise
            time.sleep(_RETRY_S)


def _open(link: socket.socket, timeout_s: float = AUTHENTICATE_S) -> NodeConnection:
    link.setblocking(True)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE:
        link.setsockopt(socket.IPPROTO_TCP, option, value)
    limit_wait(link, timeout_s)
    return NodeConnection(link)


def _authenticated(opened: NodeConnection) -> NodeConnection:
    limit_wait(opened.socket, 0.0)
    return opened


def limit_wait(link: socket.socket, seconds: float) -> None:
    """Limit how long a read or a write waits; 0 for ever."""
    whole = int(seconds)
    wait = struct.pack("ll", whole, int((seconds - whole) * 1e6))
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
