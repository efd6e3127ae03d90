"""What all answering routes do with a call: wait for it or stream it, and always close it."""

import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from fastapi import Request
from starlette.responses import Response

from outrider.frontend.request_state import PreparedRequest
from outrider.server.async_engine import AsyncEngine, RequestHandle
from outrider.server.disconnect import ClientGone, while_connected
from outrider.server.http_errors import ApiError, failed
from outrider.server.sse import EventStream

CLIENT_GONE = 499  # nginx's status; nobody reads it


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What every part of an answer repeats."""

    id: str
    created: int
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The name that clients call the model by."""

    name: str

    def check(self, asked: str | None) -> None:
        """Refuse a name that is not served; no name, or SGLang's, means the one there is."""
        if asked not in (None, "", "default", self.name):
            raise ApiError(
                404,
                f"there is no model {asked!r} here; use {self.name!r}",
                param="model",
                code="model_not_found",
            )

    def envelope(self, prefix: str) -> Envelope:
        """A new answer's id, and when it was begun."""
        name = f"{prefix}-{secrets.token_hex(12)}"
        return Envelope(id=name, created=int(time.time()), model=self.name)


async def answer_whole(
    async_engine: AsyncEngine, request: Request, prepared: Sequence[PreparedRequest]
) -> RequestHandle:
    """The call once all its outputs have ended well; it is aborted if the client leaves."""
    handle = async_engine.open(prepared)
    try:
        await while_connected(request.receive, handle.finish())
    except ClientGone:
        raise ApiError(CLIENT_GONE, "the client left") from None
    finally:
        async_engine.close(handle)
    for live in handle.lives:
        if live.error:
            raise failed(live.error)
    return handle


def answer_stream(
    async_engine: AsyncEngine,
    prepared: Sequence[PreparedRequest],
    write: Callable[[RequestHandle], AsyncIterator[bytes]],
) -> Response:
    """The call as events; it is aborted if the client leaves."""
    handle = async_engine.open(prepared)
    close = partial(async_engine.close, handle)
    return EventStream(write(handle), close=close, ping_s=async_engine.rules.ping_s)
