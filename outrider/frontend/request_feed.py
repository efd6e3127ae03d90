"""Runs many requests through one engine: submits them as there is room, yields each at its end."""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from outrider.errors import CapacityError, RequestError
from outrider.frontend.frontend import Frontend
from outrider.frontend.request_state import PreparedRequest, RequestState

Key = TypeVar("Key")
Refusal = RequestError | CapacityError


class Feed(Generic[Key]):
    """Owns a source of requests and the running ones, at most `max_in_flight` at a time.

    Requests are drawn late, so that a long file never lies in memory. Leaving the iteration early
    aborts what still runs.
    """

    def __init__(
        self,
        frontend: Frontend,
        source: Iterable[tuple[Key, PreparedRequest]],
        *,
        max_in_flight: int,
    ) -> None:
        self._frontend = frontend
        self._source = iter(source)
        self._max_in_flight = max_in_flight
        self._drawn: deque[tuple[Key, PreparedRequest]] = (
            deque()
        )  # at most one, which waits for room
        self._running: list[tuple[Key, RequestState]] = []

    def __iter__(self) -> Iterator[tuple[Key, RequestState | Refusal]]:
        """Every request with its key as it finishes, or why the engine refused it."""
        try:
            while True:
                yield from self._refill()
                if not self._running:
                    return
                self._frontend.step()
                yield from self._take_finished()
        finally:
            for _, request in self._running:
                self._frontend.abort(request)

    def _refill(self) -> list[tuple[Key, Refusal]]:
        refused: list[tuple[Key, Refusal]] = []
        while len(self._running) < self._max_in_flight:
            self._drawn.extend(itertools.islice(self._source, 1 - len(self._drawn)))
            if not self._drawn:
                break
            key, prepared = self._drawn[0]
            try:
                self._running.append((key, self._frontend.submit(prepared)))
            except CapacityError as error:
                if self._running:
                    break  # it waits until a running request ends
                refused.append((key, error))
            except RequestError as error:
                refused.append((key, error))
            self._drawn.popleft()
        return refused

    def _take_finished(self) -> list[tuple[Key, RequestState]]:
        finished = [each for each in self._running if each[1].is_finished]
        self._running = [each for each in self._running if not each[1].is_finished]
        return finished
