"""One worker as the server follows it: its engine, its stats and its sleep.

Without `--data-parallel-size` there is one replica.
"""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.server.http_errors import restarting
from outrider.server.metrics import Meter
from outrider.server.remote_engine import RemoteEngine
from outrider.server.sleep_control import SleepControl
from outrider.server.worker_messages import (
    AdapterReply,
    AdapterRequest,
    FlushRequest,
    FromLoadedWorker,
    SleepReply,
    StatsReply,
    StatsRequest,
    StepFailed,
    ToWorker,
)
from outrider.wire.adapter import Adapter
from outrider.wire.engine_stats import EngineStats
from outrider.wire.runner_facts import RankFacts
from outrider.wire.submission import RequestUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaEvents:
    """What a replica tells the server."""

    deliver: Callable[[Sequence[RequestUpdate]], None]
    lost: Callable[[int], None]  # with its number
    abort_all: Callable[[], object]
    num_in_flight: Callable[[], int]  # of all replicas


class Replica:
    """Owns what is known of one worker, and pending requests for its stats."""

    def __init__(
        self, number: int, engine: RemoteEngine, meter: Meter, events: ReplicaEvents
    ) -> None:
        self.engine = engine
        self.sleeping = SleepControl(engine, meter, abort_all=events.abort_all)
        self.worker_pid = 0
        self.ranks: tuple[RankFacts, ...] = ()  # the processes that compute its model
        self.trouble = ""  # why the worker cannot answer now; empty if it can
        self._number = number
        self._meter = meter
        self._events = events
        self._tickets = itertools.count()
        self._pending_stats: dict[int, asyncio.Future[EngineStats]] = {}  # by ticket
        self._pending_checks: dict[int, asyncio.Future[str]] = {}  # of adapters, by ticket

    async def stats(self) -> EngineStats:
        """The engine's stats after all messages that were sent to it before."""
        return await self._request_stats(StatsRequest)

    async def flush(self) -> EngineStats:
        """Empty the prefix cache."""
        return await self._request_stats(FlushRequest)

    async def check_adapter(self, adapter: Adapter) -> str:
        """Why the worker cannot use an adapter; empty if it can."""
        if not self.engine.has_worker:
            raise restarting()
        ticket = next(self._tickets)
        reply = self._pending_checks[ticket] = asyncio.get_running_loop().create_future()
        self.engine.send(AdapterRequest(ticket, adapter))
        reason: str = await reply
        return reason

    def attach_worker(
        self, send: Callable[[ToWorker], None], pid: int, ranks: tuple[RankFacts, ...]
    ) -> None:
        self.worker_pid = pid
        self.ranks = ranks
        self.engine.attach(send)
        self.sleeping.attach_worker()

    def note_trouble(self, reason: str) -> None:
        self.trouble = reason

    def receive(self, message: FromLoadedWorker) -> None:
        """Take a message of the worker in."""
        if isinstance(message, StatsReply):
            pending = self._pending_stats.pop(message.ticket, None)
            if pending is not None and not pending.done():
                pending.set_result(message.stats)
            return
        if isinstance(message, AdapterReply):
            checked = self._pending_checks.pop(message.ticket, None)
            if checked is not None and not checked.done():
                checked.set_result(message.reason)
            return
        if isinstance(message, SleepReply):
            self.sleeping.receive(message)
            return
        if isinstance(message, StepFailed):
            self._events.deliver(self.engine.start_over(message))
        else:
            self._events.deliver(self.engine.receive(message.updates))
        self._meter.note_stats(
            message.stats, num_in_flight=self._events.num_in_flight(), replica=self._number
        )

    def detach_worker(self, lost_steps: frozenset[str]) -> None:
        """The worker has ended, and the steps that it was computing are lost."""
        self._meter.note_worker_lost(self._number)
        self._events.deliver(self.engine.detach(lost_steps))
        self._events.lost(self._number)
        waiting: list[asyncio.Future[Any]] = [*self._pending_stats.values()]
        for pending in [*waiting, *self._pending_checks.values()]:
            if not pending.done():
                pending.set_exception(restarting())
        self._pending_stats.clear()
        self._pending_checks.clear()
        self.sleeping.detach_worker()

    async def _request_stats(self, message: type[StatsRequest] | type[FlushRequest]) -> EngineStats:
        if not self.engine.has_worker:
            raise restarting()
        ticket = next(self._tickets)
        reply = self._pending_stats[ticket] = asyncio.get_running_loop().create_future()
        self.engine.send(message(ticket))
        stats: EngineStats = await reply
        return stats
