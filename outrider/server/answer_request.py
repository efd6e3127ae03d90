"""Answers one HTTP request, whole or as a stream, and ends its work when the client leaves."""

import asyncio
import math
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from outrider.frontend.request_state import PreparedRequest
from outrider.hub.adapter_folder import find_adapter
from outrider.hub.generation_config import SamplingDefaults
from outrider.hub.pooling_config import LAST_TOKEN, PoolingConfig
from outrider.server.async_engine import AsyncEngine
from outrider.server.http_errors import ApiError, failed, unsupported
from outrider.server.parsers.answer_parsers import NO_PARSERS, AnswerParsers
from outrider.server.request_handle import RequestHandle
from outrider.server.response_bytes import PING
from outrider.server.served_adapters import NO_SERVED_ADAPTERS, ServedAdapters
from outrider.wire.adapter import NO_ADAPTER, Adapter

Result = TypeVar("Result")
Body = TypeVar("Body", bound=BaseModel)

CLIENT_GONE = 499  # nginx's status for its log; the client that left never sees it

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold tokens back
]
_LINE_HEADERS = [(b"content-type", b"application/x-ndjson"), *_STREAM_HEADERS[1:]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The fields that an answer and each of its chunks have in common."""

    id: str
    created: int
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The name of the model that clients use, its sampling defaults, and how answers are read.

    An adapter is a served model, too: with a name of its own, and else like the model.
    """

    name: str
    sampling_defaults: SamplingDefaults = field(default_factory=dict)
    parsers: AnswerParsers = NO_PARSERS
    pooling: PoolingConfig = LAST_TOKEN
    adapters: ServedAdapters = NO_SERVED_ADAPTERS
    adapter_path: str = ""  # of the adapter that it is; empty for the model itself

    def check(self, requested: str | None) -> None:
        """Refuse a name that is not served. No name, or SGLang's "default", means this model."""
        if requested not in (None, "", "default", self.name, *self.adapters.names):
            raise ApiError(
                404,
                f"there is no model {requested!r} here; use {self.name!r}",
                param="model",
                code="model_not_found",
            )

    def choose(
        self, requested: str | None, lora_path: str | list[str | None] | None = None
    ) -> "ServedModel":
        """The model, or one of its adapters, by a name as in vLLM or by SGLang's `lora_path`.

        SGLang's clients also write the names of both, as model:adapter.
        """
        name = (requested or "").removeprefix(f"{self.name}:")
        if name not in self.adapters.names:
            self.check(requested)
            name = ""
        if isinstance(lora_path, list):
            if any(lora_path):
                raise unsupported("lora_path", "a list in lora_path")
            lora_path = None
        return self._adapted(lora_path or name)

    def adapter_of(self, lora_path: str | None) -> Adapter:
        """The adapter that SGLang's `lora_path` names, or this model's own; call it in a thread."""
        return self._adapted(lora_path or "").find_adapter()

    def find_adapter(self) -> Adapter:
        """The adapter as its files are now. A disk can be slow: call it in a thread."""
        if not self.adapter_path:
            return NO_ADAPTER
        return find_adapter(self.adapter_path, self.name)

    def _adapted(self, name: str) -> "ServedModel":
        if not name:
            return self
        if not self.adapters.is_enabled:
            raise unsupported("lora_path", "lora_path")
        if name not in self.adapters.names:
            raise ApiError(
                404,
                f"there is no adapter {name!r} here; load it with /v1/load_lora_adapter, or use "
                "one that /v1/models lists",
                param="lora_path",
                code="model_not_found",
            )
        return replace(self, name=name, adapter_path=self.adapters.path_of(name))

    def fill(self, body: Body) -> Body:
        """The body with the model's sampling where it has none."""
        given = body.model_dump(exclude_none=True, include=set(self.sampling_defaults))
        missing = {
            name: value
            for name, value in self.sampling_defaults.items()
            if name in type(body).model_fields and name not in given
        }
        return body.model_copy(update=missing) if missing else body

    def envelope(self, prefix: str, given_name: str = "") -> Envelope:
        """The envelope of a new answer. Its id has the name that the client gave the request."""
        name = f"{prefix}-{given_name or secrets.token_hex(12)}"
        return Envelope(id=name, created=int(time.time()), model=self.name)


async def answer_whole(
    async_engine: AsyncEngine,
    request: Request,
    prepared: Sequence[PreparedRequest],
    names: tuple[str, ...] = (),
) -> RequestHandle:
    """The handle once all outputs have ended well. It is aborted if the client leaves."""
    handle = await async_engine.submit(prepared)
    handle.names = names
    try:
        await _while_connected(request.receive, handle.finish())
    except _ClientGone:
        raise ApiError(CLIENT_GONE, "the client left") from None
    finally:
        async_engine.close(handle)
    for each in handle.requests:
        if not each.failure.is_none:
            raise failed(each.failure)
    return handle


async def answer_stream(
    async_engine: AsyncEngine,
    prepared: Sequence[PreparedRequest],
    write: Callable[[RequestHandle], AsyncIterator[bytes]],
    names: tuple[str, ...] = (),
) -> Response:
    """The events that `write` makes of a handle. It is aborted if the client leaves."""
    handle = await async_engine.submit(prepared)
    handle.names = names
    close = partial(async_engine.close, handle)
    return EventStream(write(handle), close=close, ping_s=async_engine.rules.ping_s)


async def answer_lines(
    async_engine: AsyncEngine,
    prepared: Sequence[PreparedRequest],
    write: Callable[[RequestHandle], AsyncIterator[bytes]],
) -> Response:
    """The same as lines of JSON, which have no comments."""
    handle = await async_engine.submit(prepared)
    close = partial(async_engine.close, handle)
    return EventStream(write(handle), close=close, ping_s=math.inf, headers=_LINE_HEADERS)


class EventStream(Response):
    """Sends server-sent events as they come. A client that reads slowly delays only itself.

    Proxies and clients close a connection that is silent for long. A stream without tokens, because
    its request waits or its prompt is long, therefore sends a comment from time to time.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        *,
        close: Callable[[], None],
        ping_s: float,  # infinite for a stream without comments
        headers: Sequence[tuple[bytes, bytes]] = _STREAM_HEADERS,
    ) -> None:
        super().__init__()
        self._stream_headers = headers
        self._events = events
        self._close = close  # called once, however the stream ends
        self._ping_s = ping_s
        self._is_silent = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        try:
            await _while_connected(receive, self._write(send))
        except _ClientGone:
            return
        finally:
            self._close()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._stream_headers})
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
        while math.isfinite(self._ping_s):
            await asyncio.sleep(self._ping_s)
            if self._is_silent:
                await send({"type": "http.response.body", "body": PING, "more_body": True})
            self._is_silent = True


class _ClientGone(Exception):
    """The client has closed the connection."""


async def _while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of the work. It is cancelled if the client leaves; its body must be read."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_wait_for_disconnect(receive))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise _ClientGone
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
