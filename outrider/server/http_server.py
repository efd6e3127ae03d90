"""The HTTP server: drains after a signal, ends in time, and cuts off clients that are overdue."""

import asyncio
import logging
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import uvicorn
from fastapi import FastAPI

from outrider.server.client_connection import ClientConnection, connections_of
from outrider.server.web_settings import WebSettings

_TICKS = 10  # of uvicorn's main loop in a second
# Of a head that has arrived in part. Shorter ones are refused when they are whole, with the reason
# (`BodyLimits`): a connection that is closed in the middle is reset, and the client sees no answer.
_HEAD_BYTES = 2**17
_KEEP_ALIVE_S = 30  # that a connection may be idle between two requests
_CLOSE_S = 1.0  # that connections have to close after they were cut off
_LATE_S = 15.0  # after the grace period the process ends, whatever it waits for
_LATE_CODE = 1

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTimeouts:
    """How long the server waits."""

    worker_s: float  # for one step of the worker
    client_s: float  # for a client that sends no whole request, or does not read
    delay_s: float  # after a signal, for routers that still send requests
    grace_s: float  # then for running answers


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEvents:
    """What the server calls when it starts and when it ends."""

    ready: Callable[[], None]
    leaving: Callable[[], None]  # the first signal came
    draining: Callable[[], None]  # new requests are refused from now on


class HttpServer(uvicorn.Server):
    """After the first signal it leaves, drains and ends. A further signal skips a stage.

    leaving    `/health` answers 503, requests are answered: routers notice, and lose nothing
    draining   new requests are refused with 503, running answers have a grace period
    """

    def __init__(
        self,
        app: FastAPI,
        events: ServerEvents,
        *,
        timeouts: ServerTimeouts,
        web: WebSettings,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=ClientConnection,  # h11 bounds headers while they arrive
                h11_max_incomplete_event_size=_HEAD_BYTES,
                ws="none",
                lifespan="off",
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                ssl_keyfile=web.ssl_keyfile or None,
                ssl_certfile=web.ssl_certfile or None,
                root_path=web.root_path,
            )
        )
        self._events = events
        self._timeouts = timeouts
        self._drains_s: float | None = None  # when it begins to drain, after the first signal
        self._ends_s: float | None = None  # when the grace period ends, while it drains

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._events.ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        del sig, frame
        if self._ends_s is not None:
            self.end_now()
        elif self._drains_s is not None:
            self._drain()
        else:
            self._leave()

    def _leave(self) -> None:
        delay_s = self._timeouts.delay_s
        self._drains_s = asyncio.get_running_loop().time() + delay_s
        self._events.leaving()
        _end_late(delay_s + self._timeouts.grace_s + _LATE_S)
        if delay_s > 0:
            _log.warning("ending: requests are answered for %g s more", delay_s)
        else:
            self._drain()

    def _drain(self) -> None:
        grace_s = self._timeouts.grace_s
        self._ends_s = asyncio.get_running_loop().time() + grace_s
        self._events.draining()
        if num_running := len(self.server_state.tasks):
            _log.warning("ending: %d answers have %g s to finish", num_running, grace_s)

    def end_now(self) -> None:
        """End now, without waiting for running answers."""
        self.should_exit = self.force_exit = True

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS == 0:
            self._cut_overdue()
        now_s = asyncio.get_running_loop().time()
        if self._drains_s is not None and self._ends_s is None and now_s >= self._drains_s:
            self._drain()
        if self._ends_s is not None and (self._is_late or not self.server_state.tasks):
            self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let answers that are complete reach their clients, then cut off the others."""
        for server in self.servers:
            server.close()
        for connection in self._connections:
            connection.shutdown()
        while self._connections and not (self._is_late or self.force_exit):
            await asyncio.sleep(1 / _TICKS)
        await self._cut_all()
        await super().shutdown(sockets)

    @property
    def _connections(self) -> tuple[ClientConnection, ...]:
        return connections_of(self.server_state.connections)

    @property
    def _is_late(self) -> bool:
        return self._ends_s is None or asyncio.get_running_loop().time() >= self._ends_s

    def _cut_overdue(self) -> None:
        failed = [each.cut_if_overdue(self._timeouts.client_s) for each in self._connections]
        for what, number in Counter(filter(None, failed)).items():
            _log.warning(
                "cut off %d connections: the client did not %s within %g s",
                number,
                what,
                self._timeouts.client_s,
            )

    async def _cut_all(self) -> None:
        if not self._connections:
            return
        _log.warning(
            "cut off %d connections at the end of the grace period", len(self._connections)
        )
        for connection in self._connections:
            connection.cut()
        deadline_s = asyncio.get_running_loop().time() + _CLOSE_S
        while self.server_state.tasks and asyncio.get_running_loop().time() < deadline_s:
            await asyncio.sleep(0.01)
        self.force_exit = True  # what is left waits for no client


def _end_late(after_s: float) -> None:
    """End the process if it still runs then. Nothing that a client does can hold it longer."""

    def end() -> None:
        _log.error("the server did not end within %g s after the signal; ending it", after_s)
        os._exit(_LATE_CODE)

    timer = threading.Timer(after_s, end)
    timer.daemon = True
    timer.start()
