"""Limits on headers and bodies, checked before a body is parsed."""

import asyncio
import re
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider.server.http_errors import ApiError

_NESTING = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_LONG = 2**16  # bytes; the nesting of longer bodies is counted off the event loop


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyLimits:
    """The defaults are far above what a prompt that fits a context needs."""

    body_bytes: int = 8 * 2**20
    header_bytes: int = 32 * 2**10
    depth: int = 64  # of nested JSON arrays and objects
    read_s: float = 60.0  # that a client has to send its body


class LimitsMiddleware:
    """Reads the whole body and passes it on, or answers with an error."""

    def __init__(self, app: ASGIApp, limits: BodyLimits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check_headers(scope)
            async with asyncio.timeout(self._limits.read_s):
                body = await self._read(receive)
            await self._check_depth(body)
        except TimeoutError:
            await ApiError(408, "the body took too long").response()(scope, receive, send)
        except ApiError as error:
            await error.response()(scope, receive, send)
        else:
            await self._app(scope, _replay(body, receive), send)

    def _check_headers(self, scope: Scope) -> None:
        headers = scope["headers"]
        if sum(len(name) + len(value) for name, value in headers) > self._limits.header_bytes:
            raise ApiError(431, f"the headers exceed {self._limits.header_bytes} bytes")
        length = dict(headers).get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 18 or int(length) > self._limits.body_bytes:
            raise self._too_long()

    async def _read(self, receive: Receive) -> bytes:
        parts, num_bytes = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ApiError(400, "the client left before its request was complete")
            parts.append(message.get("body", b""))
            num_bytes += len(parts[-1])
            if num_bytes > self._limits.body_bytes:
                raise self._too_long()
            if not message.get("more_body", False):
                return b"".join(parts)

    async def _check_depth(self, body: bytes) -> None:
        if body.count(b"[") + body.count(b"{") <= self._limits.depth:
            return
        arguments = (body, self._limits.depth)
        if len(body) < _LONG:
            is_deep = is_deeper(*arguments)
        else:
            is_deep = await asyncio.to_thread(is_deeper, *arguments)
        if is_deep:
            raise ApiError(400, f"the body nests deeper than {self._limits.depth} levels")

    def _too_long(self) -> ApiError:
        return ApiError(413, f"the body exceeds {self._limits.body_bytes} bytes")


def is_deeper(body: bytes, most: int) -> bool:
    """Whether arrays and objects are nested deeper than this; brackets in strings do not count."""
    depth = 0
    for found in _NESTING.finditer(body):
        bracket = found[0]
        if bracket in b"[{":
            depth += 1
            if depth > most:
                return True
        elif bracket in b"]}":
            depth -= 1
    return False


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns the body again, and then what the connection sends."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return waiting.pop() if waiting else await receive()

    return again
