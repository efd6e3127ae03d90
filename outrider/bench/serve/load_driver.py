"""Sends the requests of a run: as they arrive, or as many at a time as there are clients."""

import asyncio
from collections.abc import Awaitable, Callable

from outrider.bench.serve.arrivals import poisson_arrivals
from outrider.bench.serve.http_client import Clock
from outrider.bench.serve.load_journal import LoadJournal
from outrider.bench.serve.request_outcome import Failure, Outcome
from outrider.bench.serve.serve_args import ClosedLoop, OpenLoop, Pattern

SendRequest = Callable[[int], Awaitable[Outcome]]  # by the index of the request

# After these failures no other request can succeed: the run stops if none has succeeded.
HOPELESS = ("no connection", "http 401", "http 403", "http 404")


def is_hopeless(outcome: Outcome) -> bool:
    return isinstance(outcome, Failure) and outcome.kind in HOPELESS


class Driver:
    """Sends requests and writes the journal."""

    def __init__(self, send: SendRequest, journal: LoadJournal, clock: Clock) -> None:
        self._send_request = send
        self._journal = journal
        self._clock = clock
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Send no further request, and cancel those under way."""
        self._stop.set()

    async def run(self, pattern: Pattern, num: int) -> None:
        """Return when every request has ended or the run was stopped."""
        work = asyncio.create_task(self._work(pattern, num))
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            is_done = work.done()
            for task in (work, stop):
                task.cancel()
            await asyncio.wait({work, stop})
        if is_done:
            work.result()  # raises what went wrong in it

    async def _work(self, pattern: Pattern, num: int) -> None:
        if isinstance(pattern, OpenLoop):
            await self._send_on_arrival(pattern, num)
        else:
            await self._send_in_turn(pattern, num)

    async def _send_on_arrival(self, pattern: OpenLoop, num: int) -> None:
        start_s = self._clock()
        arrivals = poisson_arrivals(rate=pattern.rate, seed=pattern.seed)
        async with asyncio.TaskGroup() as group:
            for index, arrival_s in zip(range(num), arrivals, strict=False):
                due_s = start_s + arrival_s
                await asyncio.sleep(max(0.0, due_s - self._clock()))
                group.create_task(self._send(index, due_s))

    async def _send_in_turn(self, pattern: ClosedLoop, num: int) -> None:
        indices = iter(range(num))

        async def send_next() -> None:
            for index in indices:
                await self._send(index, self._clock())
                if self._stop.is_set():
                    return

        async with asyncio.TaskGroup() as group:
            for _ in range(min(pattern.concurrency, num)):
                group.create_task(send_next())

    async def _send(self, index: int, due_s: float) -> None:
        self._journal.note_start(max(0.0, self._clock() - due_s))
        try:
            outcome = await self._send_request(index)
        finally:
            self._journal.note_stop()
        self._journal.note_outcome(outcome)
        if is_hopeless(outcome) and not self._journal.answers:
            self.stop()
