"""A log line for every HTTP request, when its answer has ended."""

import logging
import time

from starlette._utils import get_route_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider.config.log_settings import facts

_PROBES = frozenset({"/health", "/metrics", "/ping"})  # asked every few seconds: only for debugging
_CLIENT_GONE = 499  # nginx's status: the client left before an answer began

_log = logging.getLogger(__name__)


class AccessLogMiddleware:
    """Logs who asked for what, the status, and the seconds until the last byte."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, began_s = _CLIENT_GONE, time.perf_counter()

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, note_status)
        finally:
            _write(scope, status, time.perf_counter() - began_s)


def _write(scope: Scope, status: int, seconds: float) -> None:
    host, port = scope.get("client") or ("unknown", 0)
    path = scope["raw_path"].decode("ascii", "backslashreplace")  # escaped: one line stays one
    level = logging.DEBUG if get_route_path(scope) in _PROBES else logging.INFO
    _log.log(
        level,
        '%s:%d "%s %s" %d %.3f s',
        host,
        port,
        scope["method"],
        path,
        status,
        seconds,
        extra=facts(
            client=f"{host}:{port}",
            method=scope["method"],
            path=path,
            status=status,
            seconds=round(seconds, 4),
        ),
    )
