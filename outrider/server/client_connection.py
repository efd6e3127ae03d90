"""One client's connection, which is cut off if the client is too slow.

It is overdue if the head or the body of a request takes too long to arrive, however steadily its
bytes come, or if the client does not read its answer.
"""

from collections.abc import Collection
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_TIMEOUT_ANSWER = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
# A body that is read has the same limit elsewhere, and an answer that says so.
_BODY_MARGIN_S = 5.0


class ClientConnection(H11Protocol):
    """Owns the times since when its client has sent no whole request, and read no bytes.

    uvicorn's own protocol waits for ever for the rest of a request, and for a client that does not
    read.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        now_s = self.loop.time()
        self._asked_s = now_s  # when the head or the body that is awaited could begin
        self._sent_s = now_s  # when the client had last read something, or there was nothing
        self._num_unsent = 0
        self._paused_s: float | None = None  # since when the buffer is full

    def data_received(self, data: bytes) -> None:
        was_idle = self._is_before_head
        if was_idle and not self.conn.trailing_data[0]:
            self._asked_s = self.loop.time()
        super().data_received(data)
        if was_idle and not self._is_before_head:
            self._asked_s = self.loop.time()

    def on_response_complete(self) -> None:
        self._asked_s = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        self._paused_s = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._paused_s = None
        super().resume_writing()

    def cut_if_overdue(self, timeout_s: float) -> str:
        """Cut the client off if it is overdue. Returns what it did not do; empty if it may stay."""
        now_s = self.loop.time()
        self._note_unsent(now_s)
        if self._unread_s(now_s) >= timeout_s:
            self.cut()
            return "read its answer"
        waited_s = now_s - self._asked_s
        if self._is_before_head and waited_s >= timeout_s:
            if self.conn.trailing_data[0]:
                self.transport.write(_TIMEOUT_ANSWER)
            self.transport.close()
            return "send the head of a request"
        if self._is_before_end and waited_s >= timeout_s + _BODY_MARGIN_S:
            self.cut()
            return "send the body of its request"
        return ""

    def cut(self) -> None:
        """End the connection at once; its requests are aborted."""
        self.transport.abort()

    @property
    def _is_before_head(self) -> bool:
        return self.conn.their_state is h11.IDLE

    @property
    def _is_before_end(self) -> bool:
        return self.conn.their_state is h11.SEND_BODY

    def _note_unsent(self, now_s: float) -> None:
        num_unsent = self.transport.get_write_buffer_size()
        if not num_unsent or num_unsent < self._num_unsent:
            self._sent_s = now_s
        self._num_unsent = num_unsent

    def _unread_s(self, now_s: float) -> float:
        """For how long the client has read nothing, or too little to empty a full buffer."""
        since_s = self._sent_s if self._paused_s is None else min(self._sent_s, self._paused_s)
        return now_s - since_s


def connections_of(connections: Collection[object]) -> tuple[ClientConnection, ...]:
    """The open connections of a server; some may close while others are looked at."""
    return tuple(each for each in connections if isinstance(each, ClientConnection))
