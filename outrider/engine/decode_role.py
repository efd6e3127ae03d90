"""A decode engine: it fetches the KV of prompts into its prefix cache, then computes the rest.

A request whose KV does not come is computed here, like any other.
"""

import logging
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass, field

from outrider.engine.prefix_cache.prefix_cache import Lease, PrefixCache
from outrider.engine.request import ArrivedRow, Placement, Request
from outrider.errors import CapacityError
from outrider.wire.engine_stats import TransferCounts
from outrider.wire.kv_transfer import KVFetch, KVFetches, SharedPrompt, digest_of
from outrider.wire.transfer_order import TransferOrder

_WAIT_S = 0.02  # how long a step waits for a transfer; new messages must not wait longer

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ArrivalSource:
    """Where KV comes from, and its text. Clients choose rooms: a room alone names nothing."""

    order: TransferOrder
    digest: str


@dataclass(slots=True, kw_only=True, eq=False)
class Arrival:
    """Pages that a transfer writes, and the requests that wait for them."""

    fetch: KVFetch
    lease: Lease
    source: ArrivalSource
    tokens: tuple[int, ...]  # whose KV comes
    requests: list[Request] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)
    is_void: bool = False  # the pages are not published, whatever comes


class DecodeRole:
    """Owns the leases of pages that are being written, until nothing writes them any more."""

    def __init__(
        self, cache: PrefixCache, fetches: KVFetches, *, ships_rows: bool, deadline_s: float
    ) -> None:
        self._cache = cache
        self._deadline_s = deadline_s  # of a whole transfer: then requests do not wait any more
        self._ships_rows = ships_rows  # a model with row state: KV comes for one request alone
        self._landed: list[Request] = []  # with KV and row state, and without a row yet
        self._fetches = fetches
        self._arrivals: dict[ArrivalSource, Arrival] = {}
        self._quarantine: list[Arrival] = []  # given up, but perhaps still being written
        self._total_done = 0
        self._total_failed = 0
        self._total_bytes = 0

    @property
    def counts(self) -> TransferCounts:
        held = [each.lease for each in (*self._arrivals.values(), *self._quarantine)]
        held += [each.arrived.lease for each in self._landed if each.arrived is not None]
        return TransferCounts(
            offered=0,
            arriving=len(held),
            pages=sum(len(each.pages) for each in held),
            total_done=self._total_done,
            total_failed=self._total_failed,
            total_bytes=self._total_bytes,
        )

    @property
    def num_waiting(self) -> int:
        return sum(len(each.requests) for each in self._arrivals.values())

    def keeps(self, request: Request) -> bool:
        submission = request.submission
        is_new = len(request.tokens) == len(submission.prompt)
        if submission.transfer.kind != "fetch" or not is_new:
            return False
        digest = digest_of(submission)
        source = ArrivalSource(submission.transfer, digest)
        arrival = self._arrivals.get(source) or self._begin(request, source)
        if arrival is None:
            self._fetches.decline(submission.transfer, digest)
            return False
        arrival.requests.append(request)
        return True

    def _begin(self, request: Request, source: ArrivalSource) -> Arrival | None:
        """Start the transfer of the pages that are not cached; None if none is of use."""
        submission, cache = request.submission, self._cache
        tokens = submission.prompt[:-1]
        num_tokens = cache.num_covered(tokens) * cache.page_size
        if self._ships_rows:
            num_tokens = len(tokens)
        if num_tokens > request.most_cached:  # its prompt must run, for log-probabilities
            return None
        lease = cache.open(tokens, salt=submission.prefix_salt)
        try:
            missing = cache.extend(lease, num_tokens)
        except CapacityError as error:
            _log.warning("request %s is computed here: %s", request.request_id, error)
            missing = ()
        if not missing:
            cache.close(lease, ())
            return None
        prompt = SharedPrompt(
            digest=source.digest,
            num_tokens=num_tokens,
            pages=missing,
            has_row_state=self._ships_rows,
        )
        fetch = self._fetches.begin(source.order, prompt)
        arrival = Arrival(fetch=fetch, lease=lease, source=source, tokens=tokens)
        self._arrivals[source] = arrival
        return arrival

    def keeps_now(self, request: Request) -> bool:
        return any(request in each.requests for each in self._arrivals.values())

    def take_ready(self) -> Iterator[Request]:
        for arrival in self._done:
            self._settle(arrival)
            yield from arrival.requests
        for arrival in self._overdue:
            yield from self._give_up_waiting(arrival)

    @property
    def _overdue(self) -> list[Arrival]:
        oldest_s = time.monotonic() - self._deadline_s
        return [
            each for each in self._arrivals.values() if each.requests and each.began_s < oldest_s
        ]

    def _give_up_waiting(self, arrival: Arrival) -> list[Request]:
        """The requests of a transfer that takes too long. Its pages are settled when it ends."""
        requests, arrival.requests = arrival.requests, []
        arrival.fetch.cancel()
        self._total_failed += 1
        _log.warning(
            "the KV of room %s is computed here: it did not come within %g s",
            arrival.source.order.room,
            self._deadline_s,
        )
        return requests

    @property
    def _done(self) -> list[Arrival]:
        return [each for each in self._arrivals.values() if each.fetch.outcome.done()]

    def _settle(self, arrival: Arrival) -> None:
        """A transfer has ended: its pages are published, or wait until nothing writes them."""
        del self._arrivals[arrival.source]
        self._total_bytes += arrival.fetch.num_bytes
        reason = arrival.fetch.outcome.result()
        if arrival.requests and not reason and not arrival.is_void:
            self._total_done += 1
            self._land(arrival)
            return
        if arrival.requests:
            self._total_failed += 1
            room = arrival.source.order.room
            _log.warning("the KV of room %s is computed here: %s", room, reason or "a reset")
        self._fetches.forget(arrival.fetch.name)
        self._quarantine.append(arrival)

    def _land(self, arrival: Arrival) -> None:
        """Publish the pages; with row state, give them to the first request that waits."""
        if not self._ships_rows:
            self._cache.close(arrival.lease, arrival.tokens)
            return
        arrival.lease.cached = len(arrival.tokens)
        arrival.requests[0].arrived = ArrivedRow(lease=arrival.lease, name=arrival.fetch.name)
        self._landed.append(arrival.requests[0])

    def _give_up(self, request: Request) -> None:
        """Take back the KV that has come for a request, unless it has its row."""
        if request.arrived is not None:
            self._cache.close(request.arrived.lease, ())
            self._fetches.forget(request.arrived.name)
            request.arrived = None

    def wait_briefly(self) -> None:
        pending = [each.fetch.outcome for each in self._arrivals.values()]
        wait(pending, _WAIT_S, return_when=FIRST_COMPLETED)

    def offer(self, placement: Placement, lease: Lease) -> None:
        raise AssertionError(f"{placement.request.request_id} has {lease} on a decode engine")

    def discard(self, request: Request) -> None:
        self._give_up(request)
        for arrival in self._arrivals.values():
            if request in arrival.requests:
                arrival.requests.remove(request)
                if not arrival.requests:
                    arrival.fetch.cancel()

    def make_room(self) -> None:
        for request in self._landed:
            self._give_up(request)

    def tend(self) -> None:
        self._landed = [each for each in self._landed if each.arrived is not None]
        for arrival in [each for each in self._done if not each.requests]:
            self._settle(arrival)
        for arrival in [each for each in self._quarantine if each.fetch.is_released()]:
            self._quarantine.remove(arrival)
            self._cache.discard(arrival.lease)

    def drop(self) -> None:
        self.make_room()
        for arrival in (*self._arrivals.values(), *self._quarantine):
            arrival.is_void = True
            arrival.fetch.cancel()
            self._cache.keep_private(arrival.lease)
