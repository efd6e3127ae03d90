"""Messages between a prefill engine and a decode engine: JSON of bounded size, then page bytes.

Both ends have proved that they know the secret before the first message.
"""

import json
import select
from collections.abc import Mapping
from typing import Any

import torch

from outrider.runtime.node_connection import NodeConnection, limit_wait

Message = Mapping[str, Any]
_MAX_BYTES = 2**22  # of one message: a list of pages has at most some hundred thousand numbers


class SideChannel:
    """Owns one authenticated connection. Everything that is wrong with it is an OSError."""

    def __init__(self, opened: NodeConnection, *, stall_s: float) -> None:
        self._opened = opened
        limit_wait(opened.socket, stall_s)

    @property
    def is_closed(self) -> bool:
        """Whether the peer has left. Between two questions it sends nothing but its end."""
        return bool(select.select([self._opened.socket], [], [], 0)[0])

    def send(self, message: Message) -> None:
        self._opened.connection.send_bytes(json.dumps(message).encode())

    def receive(self) -> Message:
        """The next message; raises OSError if none comes in time or if it is none."""
        try:
            message = json.loads(self._opened.connection.recv_bytes(_MAX_BYTES))
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
        self._opened.socket.sendall(values.numpy().data.cast("B"))

    def receive_tensor(self, values: torch.Tensor) -> None:  # [n, bytes] uint8 on the host
        """Fill the tensor; raises OSError if bytes stop coming."""
        left = values.numpy().data.cast("B")
        while left:
            num_bytes = self._opened.socket.recv_into(left)
            if not num_bytes:
                raise ConnectionError("the peer closed the side channel")
            left = left[num_bytes:]

    def close(self) -> None:
        self._opened.close()
