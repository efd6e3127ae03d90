"""A decode engine: it fetches the KV of prompts into its prefix cache, then computes the rest.

A request whose KV does not come is computed here, like any other. Requests that run go first: a
prompt gets its pages only when another engine has computed it, and when those that run and wait
before it have theirs.
"""

import logging
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, wait

from outrider.engine.arrival import Arrival, ArrivalSource, Reading
from outrider.engine.engine_role import ClaimedPages
from outrider.engine.prefix_cache.prefix_cache import Lease, PrefixCache
from outrider.engine.request import ArrivedPrompt, Placement, Precedence, Request
from outrider.wire.engine_stats import TransferCounts
from outrider.wire.kv_transfer import KVFetches, SharedPrompt, digest_of

_WAIT_S = 0.02  # how long a step waits for a transfer; new messages must not wait longer

_log = logging.getLogger(__name__)


class DecodeRole:
    """Owns the leases of pages that are being written, until nothing writes them any more."""

    def __init__(
        self, cache: PrefixCache, fetches: KVFetches, *, ships_rows: bool, deadline_s: float
    ) -> None:
        self._cache = cache
        self._deadline_s = deadline_s  # of a whole transfer: then requests do not wait any more
        self._ships_rows = ships_rows  # a model with row state: it comes for one request alone
        self._landed: list[Request] = []  # whose KV has come, and without a row yet
        self._fetches = fetches
        self._arrivals: dict[ArrivalSource, Arrival] = {}
        self._quarantine: list[Reading] = []  # given up, but perhaps still being written
        self._is_short = False  # there were no pages for an offer when it was last looked at
        self._total_done = 0
        self._total_failed = 0
        self._total_bytes = 0

    @property
    def counts(self) -> TransferCounts:
        held = [each.lease for each in (*self._readings, *self._quarantine)]
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
    def _readings(self) -> list[Reading]:
        found = [each.reading for each in self._arrivals.values()]
        return [each for each in found if each is not None]

    @property
    def num_waiting(self) -> int:
        return sum(len(each.requests) for each in self._arrivals.values())

    def keeps(self, request: Request) -> bool:
        submission = request.submission
        is_new = len(request.tokens) == len(submission.prompt)
        if submission.transfer.kind != "fetch" or not is_new:
            return False
        source = ArrivalSource(submission.transfer, digest_of(submission))
        arrival = self._arrivals.get(source)
        if arrival is not None:
            arrival.requests.append(request)
            return True
        if not self._is_of_use(request):
            self._fetches.decline(source.order, source.digest)
            return False
        room = self._fetches.ask(source.order)
        self._arrivals[source] = Arrival(source=source, room=room, requests=[request])
        return True

    def _is_of_use(self, request: Request) -> bool:
        """Whether pages of the prompt are missing here, and need not run for something else."""
        tokens, cache = request.submission.prompt[:-1], self._cache
        num_tokens = self._num_shipped(tokens)
        if num_tokens > request.most_cached:  # its prompt must run, for log-probabilities
            return False
        num_cached = cache.count_cached(tokens, salt=request.submission.prefix_salt)
        return cache.pages_for(num_tokens) > num_cached // cache.page_size

    def _num_shipped(self, tokens: tuple[int, ...]) -> int:
        """Positions whose KV travels."""
        if self._ships_rows:
            return len(tokens)
        return self._cache.num_covered(tokens) * self._cache.page_size

    def keeps_now(self, request: Request) -> bool:
        return any(request in each.requests for each in self._arrivals.values())

    def take_ready(self, claimed: ClaimedPages) -> Iterator[Request]:
        offered = [each for each in self._arrivals.values() if each.is_offered]
        self._is_short = False
        for arrival in sorted(offered, key=lambda each: each.precedence):
            self._is_short = not self._begin_read(arrival, spare=claimed(arrival.precedence))
            if self._is_short:
                break  # those behind it wait, too: it would never have its pages otherwise
            if arrival.reading is None:  # its text was computed here meanwhile
                self._fetches.decline(arrival.source.order, arrival.source.digest)
                yield from self._end(arrival)
        for arrival in tuple(self._arrivals.values()):
            if arrival.is_over:
                yield from self._settle(arrival)
            elif arrival.age_s > self._deadline_s:
                self._note_failure(arrival, f"it did not come within {self._deadline_s:g} s")
                yield from self._end(arrival)

    def _begin_read(self, arrival: Arrival, *, spare: int) -> bool:
        """Lease the pages that are not cached, and read; False if there are too few for now."""
        submission, cache = arrival.requests[0].submission, self._cache
        tokens = submission.prompt[:-1]
        num_tokens = self._num_shipped(tokens)
        lease = cache.open(tokens, salt=submission.prefix_salt)
        is_cached = len(lease.pages) >= cache.pages_for(num_tokens)
        if is_cached or not cache.has_room(lease, num_tokens, spare=spare):
            cache.close(lease, ())
            return is_cached
        prompt = SharedPrompt(
            digest=arrival.source.digest,
            num_tokens=num_tokens,
            pages=cache.extend(lease, num_tokens),
            has_row_state=self._ships_rows,
        )
        arrival.reading = Reading(self._fetches.read(arrival.source.order, prompt), lease)
        return True

    def _settle(self, arrival: Arrival) -> list[Request]:
        """A transfer has ended: its pages are published, or wait until nothing writes them."""
        reading, reason = arrival.reading, arrival.awaited.result()
        if reading is None or reason:
            self._note_failure(arrival, reason)
            return self._end(arrival)
        arrival.reading = None
        self._total_done += 1
        self._total_bytes += reading.fetch.num_bytes
        self._land(arrival.requests[0], reading)
        return self._end(arrival)

    def _note_failure(self, arrival: Arrival, reason: str) -> None:
        self._total_failed += 1
        room = arrival.source.order.room
        _log.warning("the KV of room %s is computed here: %s", room, reason)

    def _land(self, first: Request, reading: Reading) -> None:
        """Give the pages to the first request that waits; without row state, others share them."""
        tokens, lease = first.submission.prompt[:-1], reading.lease
        lease.cached = self._num_shipped(tokens)
        if not self._ships_rows:
            self._cache.publish(lease, tokens)
        row_state = reading.fetch.name if self._ships_rows else ""
        first.arrived = ArrivedPrompt(lease=lease, row_state=row_state)
        self._landed.append(first)

    def _end(self, arrival: Arrival) -> list[Request]:
        """Nothing is waited for any more; what a read still writes goes into quarantine."""
        del self._arrivals[arrival.source]
        arrival.room.leave()
        self._stop_reading(arrival)
        return arrival.requests

    def _stop_reading(self, arrival: Arrival) -> None:
        if arrival.reading is not None and not self._take_back(arrival):
            arrival.reading.fetch.cancel()
            self._quarantine.append(arrival.reading)
            arrival.reading = None

    def _take_back(self, arrival: Arrival) -> bool:
        """Whether the pages of an arrival are free now, because its read has not begun."""
        if arrival.reading is None or not arrival.reading.fetch.take_back():
            return False
        self._cache.close(arrival.reading.lease, ())
        arrival.reading = None  # it can be read later: the prefill engine keeps it
        return True

    def _give_up(self, request: Request) -> None:
        """Take back the KV that has come for a request, unless it has its row."""
        if request.arrived is not None:
            self._cache.close(request.arrived.lease, ())
            self._fetches.forget(request.arrived.row_state)
            request.arrived = None

    def wait_briefly(self) -> None:
        arrivals = self._arrivals.values()
        # An offer that has found no pages is no news.
        pending = [each.awaited for each in arrivals if not (self._is_short and each.is_offered)]
        if pending:
            wait(pending, _WAIT_S, return_when=FIRST_COMPLETED)
        else:
            time.sleep(_WAIT_S)

    def offer(self, placement: Placement, lease: Lease) -> None:
        raise AssertionError(f"{placement.request.request_id} has {lease} on a decode engine")

    def discard(self, request: Request) -> None:
        self._give_up(request)
        for arrival in tuple(self._arrivals.values()):
            if request in arrival.requests:
                arrival.requests.remove(request)
                if not arrival.requests:
                    self._end(arrival)

    def give_way(self, after: Precedence) -> bool:
        later = [each for each in self._arrivals.values() if each.precedence > after]
        later.sort(key=lambda each: each.precedence, reverse=True)
        if any(self._take_back(each) for each in later):
            return True
        landed = [each for each in self._landed if each.arrived and each.precedence > after]
        if landed:
            self._give_up(max(landed, key=lambda each: each.precedence))
        return bool(landed)

    def tend(self) -> None:
        self._landed = [each for each in self._landed if each.arrived is not None]
        for reading in [each for each in self._quarantine if each.fetch.is_released()]:
            self._quarantine.remove(reading)
            self._total_bytes += reading.fetch.num_bytes
            self._fetches.forget(reading.fetch.name)
            self._cache.discard(reading.lease)

    def drop(self) -> None:
        for request in self._landed:
            self._give_up(request)
        for arrival in self._arrivals.values():
            self._stop_reading(arrival)
        for reading in self._quarantine:
            self._cache.keep_private(reading.lease)
