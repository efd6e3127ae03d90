"""Waiting requests: the smallest precedence first; any request can leave at any time."""

import heapq
from collections.abc import Iterator
from itertools import chain

from outrider.engine.request import Phase, Precedence, Request


class _RequestHeap:
    """A heap by precedence. Requests that stopped waiting are skipped when they surface."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], Request]] = []
        self.num_waiting = 0

    def push(self, request: Request) -> None:
        heapq.heappush(self._heap, (request.precedence, request))
        self.num_waiting += 1

    def head(self) -> Request | None:
        """The request with the smallest precedence, if there is one."""
        while self._heap and self._heap[0][1].phase is not Phase.WAITING:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def before(self, precedence: Precedence) -> Iterator[Request]:
        """Requests that go before others of this precedence, in any order."""
        for own, request in self._heap:
            if own < precedence and request.phase is Phase.WAITING:
                yield request

    def pop(self) -> None:
        heapq.heappop(self._heap)
        self.num_waiting -= 1


class WaitingQueue:
    """Requests with an adapter apart from others: while they find no slot, none is looked at."""

    def __init__(self) -> None:
        self._plain = _RequestHeap()
        self._adapted = _RequestHeap()

    def __len__(self) -> int:
        return self._plain.num_waiting + self._adapted.num_waiting

    def push(self, request: Request) -> None:
        assert request.phase is Phase.WAITING
        self._heap_of(request).push(request)

    def head(self, *, has_slot: bool = True) -> Request | None:
        """The request that goes next; without a slot for an adapter, of those that need none."""
        plain, adapted = self._plain.head(), self._adapted.head() if has_slot else None
        if plain is None or adapted is None:
            return adapted if plain is None else plain
        return min(plain, adapted, key=lambda request: request.precedence)

    def before(self, precedence: Precedence) -> Iterator[Request]:
        """Requests that go before others of this precedence, in any order."""
        return chain(self._plain.before(precedence), self._adapted.before(precedence))

    def pop(self, head: Request) -> None:
        """Remove a head."""
        heap = self._heap_of(head)
        assert head is heap.head()
        heap.pop()

    def discard(self, request: Request) -> None:
        """Remove a waiting request. The caller changes its phase; then its heap skips it."""
        assert request.phase is Phase.WAITING
        self._heap_of(request).num_waiting -= 1

    def _heap_of(self, request: Request) -> _RequestHeap:
        return self._adapted if request.submission.adapter.is_wanted else self._plain
