"""Requests that are not queued for a row yet: they wait for their KV, then for their grammar."""

from collections.abc import Iterator

from outrider.engine.engine_role import NO_ROLE, EngineRole
from outrider.engine.pending_grammars import PendingGrammars
from outrider.engine.request import Request
from outrider.errors import OutriderError
from outrider.structured.grammar_cache import Grammars
from outrider.wire.failure import NO_FAILURE, RequestFailure, failure_of


class PendingRequests:
    """Owns both waits. A request is in one of them at a time."""

    def __init__(self, grammars: Grammars) -> None:
        self.grammars = PendingGrammars(grammars)
        self.role: EngineRole = NO_ROLE

    def __len__(self) -> int:
        return len(self.grammars) + self.role.num_waiting

    def __contains__(self, request: Request) -> bool:
        return request in self.grammars or self.role.keeps_now(request)

    def add(self, request: Request) -> bool:
        """Whether a new request waits here; raises if there is no room for its grammar."""
        return self.role.keeps(request) or self._awaits_grammar(request)

    def discard(self, request: Request) -> None:
        """A request has ended, here or elsewhere."""
        self.grammars.discard(request)
        self.role.discard(request)

    def tend(self, *, is_blocked: bool) -> None:
        """Take back the pages of transfers that have ended, and more if no request can run."""
        self.role.tend()
        if is_blocked:
            self.role.make_room()

    def wait_briefly(self) -> None:
        """Wait a moment for any of them."""
        (self.role if self.role.num_waiting else self.grammars).wait_briefly()

    def take_done(self) -> Iterator[tuple[Request, RequestFailure]]:
        """Requests whose wait is over, each with the failure if its grammar was refused."""
        for request in self.role.take_ready():
            try:
                is_waiting = self._awaits_grammar(request)
            except OutriderError as error:
                yield request, failure_of(error)
            else:
                if not is_waiting:
                    yield request, NO_FAILURE
        yield from self.grammars.take_done()

    def _awaits_grammar(self, request: Request) -> bool:
        if not request.submission.sampling.grammar.is_wanted:
            return False
        self.grammars.add(request)
        return True
