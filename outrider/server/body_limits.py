"""Limits on headers and JSON bodies, checked before a body is parsed."""

import asyncio
import re
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from outrider.server.http_errors import ApiError

_MARK = re.compile(rb'["\[\]{}]')
# Nothing follows the group, so a match never backtracks. The bound makes a long string several
# calls: other threads run between calls, not during one.
_IN_STRING = re.compile(rb'(?:[^"\\]+|\\.){0,4096}', re.DOTALL)
_LONG = 2**16  # bytes; longer bodies are scanned off the event loop


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyLimits:
    """The defaults are far above what a prompt that fits a context needs."""

    body_bytes: int = 8 * 2**20
    header_bytes: int = 32 * 2**10
    depth: int = 64  # of nested JSON arrays and objects
    # Both bound the time that parsing and validation take on the event loop.
    marks: int = 2**16  # strings, and brackets outside of strings
    commas: int = 2**19  # outside of strings: about one for each token id
    read_s: float = 60.0  # that a client has to send its body


class HeaderLimitsMiddleware:
    """Answers with an error if headers are too large, or announce a body that is."""

    def __init__(self, app: ASGIApp, limits: BodyLimits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["type"] == "http":
                _check_headers(scope, self._limits)
        except ApiError as error:
            await error.response()(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _check_headers(scope: Scope, limits: BodyLimits) -> None:
    headers = scope["headers"]
    if sum(len(name) + len(value) for name, value in headers) > limits.header_bytes:
        raise ApiError(431, f"the headers exceed {limits.header_bytes} bytes")
    length = dict(headers).get(b"content-length", b"0")
    if not length.isdigit() or len(length) > 18 or int(length) > limits.body_bytes:
        raise _too_long(limits)


async def read_body(receive: Receive, limits: BodyLimits) -> bytes:
    """The whole body, which JSON parsing can take without a deep stack or a long stall."""
    try:
        async with asyncio.timeout(limits.read_s):
            body = await _receive_body(receive, limits)
    except TimeoutError:
        raise ApiError(408, "the body took too long") from None
    if len(body) < _LONG:
        check_marks(body, limits)
    else:
        await asyncio.to_thread(check_marks, body, limits)
    return body


async def _receive_body(receive: Receive, limits: BodyLimits) -> bytes:
    parts, num_bytes = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ApiError(400, "the client left before its request was complete")
        parts.append(message.get("body", b""))
        num_bytes += len(parts[-1])
        if num_bytes > limits.body_bytes:
            raise _too_long(limits)
        if not message.get("more_body", False):
            return b"".join(parts)


def check_marks(body: bytes, limits: BodyLimits) -> None:
    """Refuse JSON that is nested too deep or has too many values, in linear time."""
    num_opened = body.count(b"[") + body.count(b"{")
    num_marks = 2 * num_opened + body.count(b'"')
    is_short = num_marks <= limits.marks and body.count(b",") <= limits.commas
    if not is_short or num_opened > limits.depth:
        _count_marks(body, limits)


def _count_marks(body: bytes, limits: BodyLimits) -> None:
    """Brackets and commas inside of strings do not count."""
    depth = num_marks = num_commas = position = 0
    while found := _MARK.search(body, position):
        num_commas += body.count(b",", position, found.start())
        num_marks += 1
        position, mark = found.end(), found[0]
        if mark == b'"':
            position = _end_of_string(body, position)
        else:
            depth += 1 if mark in b"[{" else -1
        if depth > limits.depth:
            raise ApiError(400, f"the body nests deeper than {limits.depth} levels")
        if num_marks > limits.marks:
            raise _too_many(f"{limits.marks} strings and brackets")
        if num_commas > limits.commas:
            raise _too_many(f"{limits.commas} commas outside of strings")
    if num_commas + body.count(b",", position) > limits.commas:
        raise _too_many(f"{limits.commas} commas outside of strings")


def _end_of_string(body: bytes, position: int) -> int:
    """The position after the closing quote of a string, or the end of the body."""
    while found := _IN_STRING.match(body, position):
        if body[found.end() : found.end() + 1] == b'"':
            return found.end() + 1
        if found.end() == position:
            break  # the body ends inside the string
        position = found.end()
    return len(body)


def _too_long(limits: BodyLimits) -> ApiError:
    return ApiError(
        413,
        f"the body exceeds {limits.body_bytes} bytes; send shorter prompts, or smaller images, "
        "or start the server with a larger --request-body",
    )


def _too_many(what: str) -> ApiError:
    return ApiError(400, f"the body has more than {what}; send less in one request")
