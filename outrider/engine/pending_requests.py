"""Requests that are in no queue for a row: they wait for their KV or grammar, or have failed."""

from collections.abc import Iterator

from outrider.engine.engine_role import NO_ROLE, ClaimedPages, EngineRole
from outrider.engine.pending_grammars import PendingGrammars
from outrider.engine.request import Request
from outrider.errors import OutriderError
from outrider.structured.grammar_cache import Grammars
from outrider.wire.adapter import Adapter, AdapterChecks, AdapterFiles
from outrider.wire.failure import NO_FAILURE, RequestFailure, failure_of


class PendingRequests:
    """Owns both waits, and the failures to tell. A request is in one of them at a time."""

    def __init__(self, grammars: Grammars, adapters: AdapterChecks) -> None:
        self.grammars = PendingGrammars(grammars)
        self.adapters = adapters
        self._refused: dict[Request, RequestFailure] = {}
        self.role: EngineRole = NO_ROLE

    def __len__(self) -> int:
        return len(self.grammars) + self.role.num_waiting + len(self._refused)

    def __contains__(self, request: Request) -> bool:
        is_refused = request in self._refused
        return is_refused or request in self.grammars or self.role.keeps_now(request)

    def add(self, request: Request) -> bool:
        """Whether a new request waits here; raises if there is no room for its grammar."""
        return self.role.keeps(request) or self._awaits_grammar(request)

    def discard(self, request: Request) -> None:
        """A request has ended, here or elsewhere."""
        self._refused.pop(request, None)
        self.grammars.discard(request)
        self.role.discard(request)

    def refuse(self, request: Request, failure: RequestFailure) -> None:
        """A request that was queued cannot run: its next update tells why."""
        self._refused[request] = failure

    def read_adapter(self, adapter: Adapter) -> AdapterFiles:
        """The files of an adapter that gets a slot."""
        return self.adapters.read(adapter)

    def wait_briefly(self) -> None:
        """Wait a moment for any of them, unless a failure can be told."""
        if self._refused:
            return
        (self.role if self.role.num_waiting else self.grammars).wait_briefly()

    def take_done(self, claimed: ClaimedPages) -> Iterator[tuple[Request, RequestFailure]]:
        """Requests whose wait is over, each with the failure if it was refused."""
        refused, self._refused = self._refused, {}
        yield from refused.items()
        for request in self.role.take_ready(claimed):
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
