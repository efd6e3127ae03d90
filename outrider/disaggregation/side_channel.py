"""Messages between a prefill engine and a decode engine: JSON of bounded size, then page bytes.

Both ends have proved that they know the secret before the first message. Every message and every
piece of page bytes has a tag of the session, so an end that only relays can change and add nothing.
"""

import hmac
import json
import secrets
import select
from collections.abc import Mapping
from typing import Any

import torch

from outrider.disaggregation.session_tags import (
    NONCE_BYTES,
    TAG_BYTES,
    SessionTags,
    session_tags,
)
from outrider.runtime.node_connection import NodeConnection, limit_wait
from outrider.wire.transfer_order import TransferSide

Message = Mapping[str, Any]
_MAX_BYTES = 2**22  # of one message: a list of pages has at most some hundred thousand numbers


class SideChannel:
    """Owns one authenticated connection. Everything that is wrong with it is an OSError."""

    def __init__(self, opened: NodeConnection, tags: SessionTags) -> None:
        self._opened = opened
        self._tags = tags

    @property
    def is_closed(self) -> bool:
        """Whether the peer has left. Between two questions it sends nothing but its end."""
        poll = select.poll()  # `select` takes no file numbers above 1023
        poll.register(self._opened.socket, select.POLLIN)
        return bool(poll.poll(0))

    def send(self, message: Message) -> None:
        self.send_bytes(json.dumps(message).encode())

    def send_bytes(self, message: bytes) -> None:
        self._opened.connection.send_bytes(self._tags.sent.next(message) + message)

    def _receive_bytes(self) -> bytes:
        received = self._opened.connection.recv_bytes(_MAX_BYTES + TAG_BYTES)
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
        except (EOFError, ValueError, RecursionError) as error:
            raise ConnectionError(
                f"the peer closed the side channel or broke it ({error})"
            ) from error
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
        """Fill the tensor; raises OSError if bytes stop coming, or are not those of the peer."""
        values_bytes, tag = values.numpy().data.cast("B"), bytearray(TAG_BYTES)
        self._fill(values_bytes)
        self._fill(memoryview(tag))
        self._check(bytes(tag), self._tags.received.next(values_bytes))

    def _fill(self, left: memoryview) -> None:
        while left:
            num_bytes = self._opened.socket.recv_into(left)
            if not num_bytes:
                raise ConnectionError("the peer closed the side channel")
            left = left[num_bytes:]

    def close(self) -> None:
        self._opened.close()


def open_channel(
    opened: NodeConnection, key: bytes, side: TransferSide, *, stall_s: float
) -> SideChannel:
    """Agree on the tags of a session; raises OSError if the peer does not."""
    limit_wait(opened.socket, stall_s)
    own = secrets.token_bytes(NONCE_BYTES)
    try:
        opened.connection.send_bytes(own)
        theirs = opened.connection.recv_bytes(NONCE_BYTES)
        if len(theirs) != NONCE_BYTES:
            raise ConnectionError("it sent no random number")
    except (EOFError, OSError) as error:
        opened.close()
        raise ConnectionError(f"the peer closed the side channel ({error})") from error
    return SideChannel(opened, session_tags(key, side, own=own, theirs=theirs))
