"""Server-sent events: a response that ends its work with its client."""

from collections.abc import AsyncIterator, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from outrider.serve.disconnect import ClientGone, while_connected

DONE = b"data: [DONE]\n\n"

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold tokens back
]


def event(data: str) -> bytes:
    """One event with this data, which has no line breaks."""
    return b"data: " + data.encode() + b"\n\n"


def named_event(name: str, data: str) -> bytes:
    return b"event: " + name.encode() + b"\n" + event(data)


class EventStream(Response):
    """Sends events as they come. A client that reads slowly holds up nobody but itself."""

    def __init__(self, events: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        super().__init__()
        self._events = events
        self._close = close  # called once, however the stream ends

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        try:
            await while_connected(receive, self._write(send))
        except ClientGone:
            return
        finally:
            self._close()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        async for each in self._events:
            await send({"type": "http.response.body", "body": each, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
