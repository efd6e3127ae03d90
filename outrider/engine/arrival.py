"""KV that a decode engine waits for: first for its offer, then for its pages."""

import time
from concurrent.futures import Future
from dataclasses import dataclass, field

from outrider.engine.prefix_cache.prefix_cache import Lease
from outrider.engine.request import Precedence, Request
from outrider.wire.kv_transfer import KVFetch, KVRoom
from outrider.wire.transfer_order import TransferOrder


@dataclass(frozen=True, slots=True)
class ArrivalSource:
    """Where KV comes from, and its text. Clients choose rooms: a room alone names nothing."""

    order: TransferOrder
    digest: str


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """Pages that a transfer writes."""

    fetch: KVFetch
    lease: Lease


@dataclass(slots=True, kw_only=True, eq=False)
class Arrival:
    """A prompt that another engine computes, and the requests that wait for it, one at least."""

    source: ArrivalSource
    room: KVRoom
    requests: list[Request]
    began_s: float = field(default_factory=time.monotonic)
    reading: Reading | None = None  # once the prompt is computed, and there are pages for it

    @property
    def precedence(self) -> Precedence:
        return min(each.precedence for each in self.requests)

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.began_s

    @property
    def is_offered(self) -> bool:
        """Whether the prompt is computed, and nothing reads its pages yet."""
        offered = self.room.offered
        return self.reading is None and offered.done() and not offered.result()

    @property
    def awaited(self) -> "Future[str]":
        """What it waits for now; the result is why it fails, or empty."""
        return self.room.offered if self.reading is None else self.reading.fetch.outcome

    @property
    def is_over(self) -> bool:
        """Whether the pages are there, or cannot come."""
        return self.awaited.done() and not self.is_offered
