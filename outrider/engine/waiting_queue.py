"""Waiting requests: the smallest precedence first; any request can leave at any time."""

import heapq

from outrider.engine.request import Phase, Request


class WaitingQueue:
    """A heap by precedence. Requests that stopped waiting are skipped when they surface."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], Request]] = []
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def push(self, request: Request) -> None:
        assert request.phase is Phase.WAITING
        heapq.heappush(self._heap, (request.precedence, request))
        self._num_waiting += 1

    def head(self) -> Request:
        """The request that goes next; the queue must not be empty."""
        while self._heap[0][1].phase is not Phase.WAITING:
            heapq.heappop(self._heap)
        return self._heap[0][1]

    def pop(self) -> Request:
        request = self.head()
        heapq.heappop(self._heap)
        self._num_waiting -= 1
        return request

    def discard(self, request: Request) -> None:
        """Remove a waiting request. The caller changes its phase; then the heap skips it."""
        assert request.phase is Phase.WAITING
        self._num_waiting -= 1
