"""Server-sent events: a response that ends its work with its client."""

import asyncio
from collections.abc import AsyncIterator, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from outrider.server.disconnect import ClientGone, while_connected

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"  # a comment, which clients skip

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
    """Sends events as they come. A client that reads slowly holds up nobody but itself.

    Proxies and clients give up a connection that is silent for long: one whose request waits, or
    whose prompt is long, hears a comment from time to time.
    """

    def __init__(
        self, events: AsyncIterator[bytes], *, close: Callable[[], None], ping_s: float
    ) -> None:
        super().__init__()
        self._events = events
        self._close = close  # called once, however the stream ends
        self._ping_s = ping_s
        self._is_silent = True

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
        pinging = asyncio.create_task(self._ping(send))
        try:
            async for each in self._events:
                self._is_silent = False
                await send({"type": "http.response.body", "body": each, "more_body": True})
        finally:
            pinging.cancel()
            await asyncio.gather(pinging, return_exceptions=True)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _ping(self, send: Send) -> None:
        while True:
            await asyncio.sleep(self._ping_s)
            if self._is_silent:
                await send({"type": "http.response.body", "body": PING, "more_body": True})
            self._is_silent = True
