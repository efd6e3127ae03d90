"""Requests that wait for what they must obey to be compiled."""

from collections.abc import Iterator
from concurrent.futures import Future, wait

from outrider.engine.request import Request
from outrider.structured.grammar_cache import Grammars

_PATIENCE_S = 0.02  # how long a step waits for a grammar; callers want to be heard, too


class PendingGrammars:
    """Owns who waits for which grammar. They are in no other queue meanwhile."""

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self._pending: dict[Request, Future[str]] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, request: Request) -> bool:
        return request in self._pending

    def place(self, request: Request) -> None:
        """Let a request wait for its grammar; raises if that is refused at first sight."""
        self._pending[request] = self._grammars.order(request.submission.sampling.grammar.spec)

    def discard(self, request: Request) -> None:
        self._pending.pop(request, None)

    def is_ready(self, request: Request) -> bool:
        """Whether a request has what it must obey; else it waits here again.

        The shop forgets grammars, and a long queue outlasts its memory.
        """
        if not request.submission.sampling.grammar.is_asked:
            return True
        self.place(request)
        order = self._pending[request]
        is_ready = order.done() and order.exception() is None
        if is_ready:
            self.discard(request)
        return is_ready

    def linger(self) -> None:
        """Wait a moment for any of them."""
        wait(self._pending.values(), _PATIENCE_S)

    def take(self) -> Iterator[tuple[Request, str]]:
        """Those whose wait is over, and why it was in vain if it was."""
        for request in [each for each, order in self._pending.items() if order.done()]:
            error = self._pending.pop(request).exception()
            yield request, "" if error is None else str(error) or repr(error)
