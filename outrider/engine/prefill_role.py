"""A prefill engine: it computes prompts, and lends their pages to decode engines."""

from dataclasses import dataclass

from outrider.engine.engine_role import NothingArrives
from outrider.engine.prefix_cache.prefix_cache import Lease, PrefixCache
from outrider.engine.request import Placement, Request
from outrider.wire.engine_stats import TransferCounts
from outrider.wire.kv_transfer import KVOffers, SharedPrompt, digest_of


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedLease:
    """Pages that a decode engine may read, and their text."""

    lease: Lease
    tokens: tuple[int, ...]  # whose KV is in the pages


class PrefillRole(NothingArrives):
    """Owns the leases of prompts that are computed and not read yet."""

    def __init__(self, cache: PrefixCache, offers: KVOffers, *, ships_rows: bool) -> None:
        self._cache = cache
        self._ships_rows = ships_rows  # a model with row state: its last page is not full
        self._offers = offers
        self._expected: dict[Request, str] = {}  # rooms of requests that run
        self._leases: dict[str, OfferedLease] = {}  # by room
        self._total_offered = 0

    @property
    def counts(self) -> TransferCounts:
        pages = sum(len(each.lease.pages) for each in self._leases.values())
        return TransferCounts(
            offered=len(self._leases),
            arriving=0,
            pages=pages,
            total_done=self._total_offered,
            total_failed=0,
            total_bytes=0,
        )

    def keeps(self, request: Request) -> bool:
        """Never; but a reader that asks for its room is told to wait."""
        if request.is_offered:
            room = request.submission.transfer.room
            self._expected[request] = room
            self._offers.expect(room)
        return False

    def offer(self, placement: Placement, lease: Lease) -> None:
        self.tend()  # an offer of the same room that was read since the step began
        request = placement.request
        submission, tokens = request.submission, tuple(request.tokens[: placement.goal])
        room = self._expected.pop(request)
        cache = self._cache
        num_pages = cache.pages_for(len(tokens)) if self._ships_rows else cache.num_covered(tokens)
        if room in self._leases:  # a request that was computed twice: the first pages are offered
            self._cache.close(lease, tokens)
            return
        if not num_pages:
            self._cache.close(lease, tokens)
            self._offers.end(room)
            return
        self._leases[room] = OfferedLease(lease=lease, tokens=tokens)
        self._total_offered += 1
        prompt = SharedPrompt(
            digest=digest_of(submission),
            num_tokens=len(tokens) if self._ships_rows else num_pages * cache.page_size,
            pages=tuple(lease.pages[:num_pages]),
            has_row_state=self._ships_rows,
        )
        self._offers.offer(room, prompt, placement.row)

    def discard(self, request: Request) -> None:
        room = self._expected.pop(request, None)
        if room is not None and room not in self._leases:
            self._offers.end(room)

    def tend(self) -> None:
        for room in self._offers.take_ended():
            self._close(room)

    def drop(self) -> None:
        for room in tuple(self._leases):
            self._offers.end(room)
            self._close(room)

    def _close(self, room: str) -> None:
        offered = self._leases.pop(room, None)
        if offered is not None:
            self._cache.close(offered.lease, offered.tokens)
