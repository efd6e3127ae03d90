"""Messages between a prefill engine and a decode engine: JSON of bounded size, then page bytes.

Both ends have proved that they know the secret before the first message. Every message and every
piece of page bytes has a tag of the session, so an end that only relays can change and add nothing.
"""

import hmac
import json
import secrets
import select
import time
from collections.abc import Mapping
from typing import Any

import torch

from outrider.disaggregation.session_tags import (
    NONCE_BYTES,
    TAG_BYTES,
    SessionTags,
    session_tags,
)
from outrider.runtime.node_connection import (
    AUTHENTICATE_S,
    SIZE,
    Handshake,
    NodeConnection,
    limit_wait,
    receive_some,
)
from outrider.wire.transfer_order import TransferSide

Message = Mapping[str, Any]
_MAX_BYTES = 2**22  # of one message: a list of pages has at most some hundred thousand numbers
_SLOWEST = 2**20  # bytes of a tensor per second; a peer that sends fewer is given up


class SideChannel:
    """Owns one authenticated connection. Everything that is wrong with it is an OSError."""

    def __init__(self, opened: NodeConnection, tags: SessionTags, *, stall_s: float) -> None:
        self._opened = opened
        self._tags = tags
        self._num_received = 0  # bytes since the last `take_num_received`
        self.wait_up_to(stall_s)

    def wait_up_to(self, stall_s: float) -> None:
        """How long the next messages may take, each as a whole: one may come byte by byte."""
        self._stall_s = stall_s
        limit_wait(self._opened.socket, stall_s)

    @property
    def is_closed(self) -> bool:
        """Whether the peer has left. Between two questions it sends nothing but its end."""
        poll = select.poll()  # `select` takes no file numbers above 1023
        poll.register(self._opened.socket, select.POLLIN)
        return bool(poll.poll(0))

    def take_num_received(self) -> int:
        """Bytes that have come since the last call, those of messages and tags included."""
        num_bytes, self._num_received = self._num_received, 0
        return num_bytes

    def send(self, message: Message) -> None:
        self.send_bytes(json.dumps(message).encode())

    def send_bytes(self, message: bytes) -> None:
        self._opened.connection.send_bytes(self._tags.sent.next(message) + message)

    def _receive_bytes(self) -> bytes:
        end_s = time.monotonic() + self._stall_s
        (size,) = SIZE.unpack(self._read(SIZE.size, end_s))
        if not TAG_BYTES <= size <= _MAX_BYTES + TAG_BYTES:
            raise ConnectionError(f"the peer sent a message of {size} bytes")
        received = self._read(size, end_s)
        tag, message = received[:TAG_BYTES], received[TAG_BYTES:]
        self._check(tag, self._tags.received.next(message))
        return message

    def _check(self, tag: bytes, right: bytes) -> None:
        if not hmac.compare_digest(tag, right):
            raise ConnectionError("the side channel was changed on its way")

    def receive(self) -> Message:
        """The next message; raises OSError if none comes in time or if it is none."""
        try:
            message = json.loads(self._receive_bytes())
        except (ValueError, RecursionError) as error:
            raise ConnectionError(f"the peer broke the side channel ({error})") from error
        if not isinstance(message, dict):
            raise ConnectionError("the peer sent something that is no message")
        return message

    def ask(self, message: Message) -> Message:
        """The answer to a message."""
        self.send(message)
        return self.receive()

    def send_tensor(self, values: torch.Tensor) -> None:  # [n, bytes] uint8 on the host
        values_bytes = values.numpy().data.cast("B")
        self._opened.socket.sendall(values_bytes)
        self._opened.socket.sendall(self._tags.sent.next(values_bytes))

    def receive_tensor(self, values: torch.Tensor) -> None:  # [n, bytes] uint8 on the host
        """Fill the tensor; raises OSError if bytes are slow, or are not those of the peer."""
        values_bytes = values.numpy().data.cast("B")
        end_s = time.monotonic() + self._stall_s + len(values_bytes) / _SLOWEST
        self._fill(values_bytes, end_s)
        tag = self._read(TAG_BYTES, end_s)
        self._check(tag, self._tags.received.next(values_bytes))

    def _read(self, num_bytes: int, end_s: float) -> bytes:
        read = bytearray(num_bytes)
        self._fill(memoryview(read), end_s)
        return bytes(read)

    def _fill(self, left: memoryview, end_s: float) -> None:
        while left:
            num_bytes = receive_some(self._opened.socket, left, end_s)
            self._num_received += num_bytes
            left = left[num_bytes:]

    def close(self) -> None:
        self._opened.close()


def open_channel(
    opened: NodeConnection, key: bytes, side: TransferSide, *, stall_s: float
) -> SideChannel:
    """Agree on the tags of a session; raises OSError if the peer does not."""
    limit_wait(opened.socket, AUTHENTICATE_S)
    own = secrets.token_bytes(NONCE_BYTES)
    handshake = Handshake(opened.socket, time.monotonic() + min(stall_s, AUTHENTICATE_S))
    try:
        handshake.send_bytes(own)
        theirs = handshake.recv_bytes(NONCE_BYTES)
        if len(theirs) != NONCE_BYTES:
            raise ConnectionError("it sent no random number")
    except OSError as error:
        opened.close()
        raise ConnectionError(f"the peer closed the side channel ({error})") from error
    tags = session_tags(key, side, own=own, theirs=theirs)
    return SideChannel(opened, tags, stall_s=stall_s)
