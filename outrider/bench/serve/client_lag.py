"""Whether the client keeps up: how late its event loop wakes, and how much of a core it takes."""

import asyncio
import time
from dataclasses import dataclass

from outrider.bench.serve.http_client import Clock
from outrider.bench.serve.load_summary import Spread, spread_of

_INTERVAL_S = 0.02

# An idle loop wakes up to a millisecond late; far more than that distorts every measured time.
MAX_LAG_S = 0.005
MAX_CPU_SHARE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLoad:
    """How busy the client itself was."""

    lag: Spread  # seconds that the event loop woke late
    cpu_share: float  # of one core: an event loop has no other
    late: Spread  # seconds that requests were sent after they were due

    @property
    def is_bottleneck(self) -> bool:
        return self.lag.p99 > MAX_LAG_S or self.cpu_share > MAX_CPU_SHARE


class LagMeter:
    """Measures how late the event loop wakes, while its task runs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start_s, self._start_cpu_s = clock(), time.process_time()
        self._lags_s: list[float] = []

    async def run(self) -> None:
        while True:
            before_s = self._clock()
            await asyncio.sleep(_INTERVAL_S)
            self._lags_s.append(max(0.0, self._clock() - before_s - _INTERVAL_S))

    def read(self, lates_s: list[float]) -> ClientLoad:
        """The load so far; `lates_s` is how late every request was sent."""
        wall_s = max(self._clock() - self._start_s, 1e-9)
        return ClientLoad(
            lag=spread_of(self._lags_s),
            cpu_share=(time.process_time() - self._start_cpu_s) / wall_s,
            late=spread_of(lates_s),
        )
