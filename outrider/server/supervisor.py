"""Keeps a worker running: starts it, hands its words on, and starts another when it ends."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from outrider.config.engine_config import EngineConfig
from outrider.errors import ConfigError
from outrider.server.worker_link import OnProgress, WorkerLink, open_link
from outrider.server.worker_messages import Down, News, StatsReply
from outrider.wire.runner_facts import RunnerFacts

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 30.0

_log = logging.getLogger(__name__)


class Listener(Protocol):
    """Who wants to know what a worker says."""

    def begin(self, send: Callable[[Down], None], pid: int) -> None:
        """A worker is ready."""
        ...

    def hear(self, message: News | StatsReply) -> None: ...

    def end(self) -> None:
        """The worker is gone, with everything it was computing."""
        ...


class Supervisor:
    """Owns the present worker."""

    def __init__(self, folder: Path, config: EngineConfig, on_progress: OnProgress) -> None:
        self._folder = folder
        self._config = config
        self._on_progress = on_progress
        self._links: list[WorkerLink] = []  # one, or none while there is no worker

    async def start(self) -> RunnerFacts:
        """The first worker, loaded; raises if it cannot be."""
        return await self._open()

    async def run(self, listener: Listener) -> None:
        """Hand on what workers say, one after the other, until cancelled."""
        while True:
            for link in self._links:
                listener.begin(link.send, link.pid)
                async for message in link.news():
                    listener.hear(message)
                listener.end()
            _log.error("the engine's worker is gone; starting another")
            await self._close()
            await self._reopen()

    async def stop(self) -> None:
        await self._close()

    async def _reopen(self) -> None:
        """Try until a worker is ready, ever more slowly."""
        pause_s = _FIRST_PAUSE_S
        while not self._links:
            try:
                await self._open()
            except ConfigError as error:
                _log.error("%s; trying again in %g s", error, pause_s)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _open(self) -> RunnerFacts:
        link = await open_link(self._folder, self._config)
        self._links.append(link)
        try:
            return await link.ready(self._on_progress)
        except BaseException:
            await self._close()
            raise

    async def _close(self) -> None:
        while self._links:
            await self._links.pop().close()
