"""Sends the engine to sleep and wakes it up. Requests that come meanwhile wait, as in vLLM."""

import asyncio
import itertools
import logging
from collections.abc import Callable

from outrider.server.http_errors import ApiError, restarting
from outrider.server.metrics import Meter
from outrider.server.remote_engine import RemoteEngine
from outrider.server.worker_messages import HeadRequest, SleepReply, SleepRequest, WakeRequest
from outrider.wire.sleep_level import ASLEEP, SleepLevel, SleepMode, SleepTag, check_level

_LOOK_S = 0.02  # between two looks whether running requests have ended

_log = logging.getLogger(__name__)


class SleepControl:
    """Owns whether the engine sleeps. One request to sleep or to wake up is under way at a time."""

    def __init__(self, engine: RemoteEngine, meter: Meter, abort_all: Callable[[], object]) -> None:
        self._engine = engine
        self._meter = meter
        self._abort_all = abort_all
        self._turn = asyncio.Lock()
        self._tickets = itertools.count()
        self._pending: dict[int, asyncio.Future[SleepReply]] = {}  # by ticket; at most one
        self._level: SleepLevel = 0
        self._has_warned = False  # that a request waits
        self.asleep: tuple[SleepTag, ...] = ()  # what has to wake up; empty if the engine is awake

    async def sleep(self, level: SleepLevel, mode: SleepMode) -> None:
        """Let requests wait, and the worker sleep. Running ones end, finish first, or wait, too."""
        check_level(level, dp_size=self._engine.facts.memory.dp_size)  # before any request ends
        async with self._turn:
            self._engine.hold()
            try:
                if mode == "abort":
                    self._abort_all()
                while mode == "wait" and self._engine.num_submitted:
                    await asyncio.sleep(_LOOK_S)
                reply = await self._order(SleepRequest(next(self._tickets), level))
            except BaseException:
                self._resume_if_awake()
                raise
            self._engine.take_back()  # of the requests that ran, the server knows every token
            self._level = max(self._level, level)
            self._conclude(reply, "sleep")

    async def wake_up(self, tags: tuple[SleepTag, ...]) -> None:
        """Bring back what the tags name. Once all is back, what waits is submitted."""
        async with self._turn:
            reply = await self._order(WakeRequest(next(self._tickets), tags))
            self._conclude(reply, "wake up")

    async def use_head(self, folder: str) -> None:
        """Draft with another head. Running requests wait meanwhile, then go on."""
        async with self._turn:
            if self.asleep:
                raise ApiError(503, ASLEEP, code="asleep")
            self._engine.hold()
            try:
                reply = await self._order(HeadRequest(next(self._tickets), folder))
            except BaseException:
                self._resume_if_awake()
                raise
            self._engine.take_back()  # the worker has dropped them, and no token is lost
            self._conclude(reply, "use the head")

    def note_request(self) -> None:
        """A request has come. If it has to wait for a call of the operator, the log says so."""
        if not self.asleep:
            return
        self._meter.note_waiting(self._engine.num_in_flight)
        if not self._has_warned:
            self._has_warned = True
            _log.warning("requests wait: the model is asleep; wake it up with POST /wake_up")

    def receive(self, reply: SleepReply) -> None:
        """A worker has done what it was asked for, or cannot."""
        self.asleep = reply.asleep
        pending = self._pending.pop(reply.ticket, None)
        if pending is not None and not pending.done():
            pending.set_result(reply)

    def attach_worker(self) -> None:
        """A new worker is awake. If the one before slept, this one must, too."""
        if self.asleep:
            self._engine.send(SleepRequest(next(self._tickets), self._level))

    def detach_worker(self) -> None:
        """The worker has ended, and answers no more."""
        for pending in self._pending.values():
            if not pending.done():
                pending.set_exception(restarting())
        self._pending.clear()

    async def _order(self, message: SleepRequest | WakeRequest | HeadRequest) -> SleepReply:
        if not self._engine.has_worker:
            raise restarting()
        pending = self._pending[message.ticket] = asyncio.get_running_loop().create_future()
        self._engine.send(message)
        reply: SleepReply = await pending
        return reply

    def _conclude(self, reply: SleepReply, what: str) -> None:
        self._resume_if_awake()
        self._meter.note_sleep(self._level)
        if reply.reason:
            raise ApiError(503, f"the engine did not {what}: {reply.reason}", code="no_memory")

    def _resume_if_awake(self) -> None:
        if not self.asleep:
            self._level, self._has_warned = 0, False
            self._engine.resume()
