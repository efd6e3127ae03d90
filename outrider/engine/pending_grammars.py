"""Requests that wait for their grammar to be compiled."""

from collections.abc import Iterator
from concurrent.futures import Future, wait

from outrider.engine.request import Request
from outrider.structured.grammar_cache import Grammars
from outrider.wire.failure import NO_FAILURE, RequestFailure, failure_of

_WAIT_S = 0.02  # how long a step waits for a grammar; new messages must not wait longer


class PendingGrammars:
    """Owns the requests that wait for a grammar. They are in no other queue meanwhile."""

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self._pending: dict[Request, Future[str]] = {}

    def use(self, grammars: Grammars) -> None:
        """Compile with another cache from now on. No request waits."""
        assert not self._pending, "every request has ended"
        self._grammars = grammars

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, request: Request) -> bool:
        return request in self._pending

    def add(self, request: Request) -> None:
        """Let a request wait for its grammar; raises if the cache has no room for it."""
        self._pending[request] = self._grammars.compile(request.submission.sampling.grammar.spec)

    def discard(self, request: Request) -> None:
        self._pending.pop(request, None)

    def is_ready(self, request: Request) -> bool:
        """Whether the grammar of a request is compiled; if not, the request waits here again.

        The cache evicts grammars, and a request may be queued longer than its grammar is cached.
        """
        if not request.submission.sampling.grammar.is_wanted:
            return True
        self.add(request)
        future = self._pending[request]
        is_ready = future.done() and future.exception() is None
        if is_ready:
            self.discard(request)
        return is_ready

    def wait_briefly(self) -> None:
        """Wait a moment for any of the grammars."""
        wait(self._pending.values(), _WAIT_S)

    def take_done(self) -> Iterator[tuple[Request, RequestFailure]]:
        """Requests whose wait is over, each with the failure if its grammar was refused."""
        for request in [each for each, future in self._pending.items() if future.done()]:
            error = self._pending.pop(request).exception()
            yield request, NO_FAILURE if error is None else failure_of(error)
