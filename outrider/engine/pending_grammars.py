"""Requests that wait until their grammar is compiled."""

from collections.abc import Iterator
from concurrent.futures import Future, wait

from outrider.engine.request import Request
from outrider.structured.grammar_cache import Grammars

_WAIT_S = 0.02  # longest wait for a grammar; after it, callers must be served again


class PendingGrammars:
    """Owns the requests that wait for a grammar. They are in no other queue meanwhile."""

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self._pending: dict[Request, Future[str]] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, request: Request) -> bool:
        return request in self._pending

    def add(self, request: Request) -> None:
        """Let a request wait for its grammar; raises if the grammar is refused at once."""
        self._pending[request] = self._grammars.order(request.submission.sampling.grammar.spec)

    def discard(self, request: Request) -> None:
        self._pending.pop(request, None)

    def is_ready(self, request: Request) -> bool:
        """Whether the grammar of a request is compiled; else the request waits here again.

        The grammar cache evicts grammars, and a request can wait in the queue for longer than that.
        """
        if not request.submission.sampling.grammar.is_wanted:
            return True
        self.add(request)
        compiled = self._pending[request]
        is_ready = compiled.done() and compiled.exception() is None
        if is_ready:
            self.discard(request)
        return is_ready

    def wait_briefly(self) -> None:
        """Wait up to 20 ms for any of the grammars."""
        wait(self._pending.values(), _WAIT_S)

    def take(self) -> Iterator[tuple[Request, str]]:
        """Requests whose grammar is done, with the reason if it could not be compiled."""
        for request in [each for each, compiled in self._pending.items() if compiled.done()]:
            error = self._pending.pop(request).exception()
            yield request, "" if error is None else str(error) or repr(error)
