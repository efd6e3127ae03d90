"""Which part of a request an engine computes. Without a role it computes all of it."""

from collections.abc import Callable, Iterator
from typing import Protocol

from outrider.engine.prefix_cache.prefix_cache import Lease
from outrider.engine.request import Placement, Precedence, Request
from outrider.wire.engine_stats import NO_TRANSFERS, TransferCounts

# Pages that running requests, and those that wait before a precedence, need soon.
ClaimedPages = Callable[[Precedence], int]


class EngineRole(Protocol):
    """Owns the pages of transfers, and the requests that wait for one."""

    @property
    def counts(self) -> TransferCounts: ...

    @property
    def num_waiting(self) -> int:
        """Requests that wait here and are in no other queue."""
        ...

    def keeps(self, request: Request) -> bool:
        """Whether a new request waits here, instead of for its row."""
        ...

    def keeps_now(self, request: Request) -> bool:
        """Whether a request waits here at the moment."""
        ...

    def take_ready(self, claimed: ClaimedPages) -> Iterator[Request]:
        """Requests whose wait is over. Transfers begin that leave the claimed pages to others."""
        ...

    def wait_briefly(self) -> None:
        """Wait a moment for any transfer."""
        ...

    def offer(self, placement: Placement, lease: Lease) -> None:
        """Take over the pages of a request whose prompt is computed."""
        ...

    def discard(self, request: Request) -> None:
        """A request has ended, wherever it was."""
        ...

    def tend(self) -> None:
        """Take back the pages of transfers that have ended. Called often."""
        ...

    def give_way(self, after: Precedence) -> bool:
        """Give back pages of the last request after a precedence; False if there are none.

        A read that has begun keeps its pages, because it may write them.
        """
        ...

    def drop(self) -> None:
        """A step failed: no cached page can be trusted."""
        ...


class NothingArrives:
    """The base of roles in which no request waits for a transfer."""

    num_waiting = 0

    def keeps_now(self, request: Request) -> bool:
        del request
        return False

    def take_ready(self, claimed: ClaimedPages) -> Iterator[Request]:
        del claimed
        return iter(())

    def give_way(self, after: Precedence) -> bool:
        del after
        return False

    def wait_briefly(self) -> None:
        pass


class NoRole(NothingArrives):
    """The engine computes whole requests."""

    counts = NO_TRANSFERS

    def keeps(self, request: Request) -> bool:
        del request
        return False

    def offer(self, placement: Placement, lease: Lease) -> None:
        raise AssertionError(f"{placement.request.request_id} has {lease}, and no role")

    def discard(self, request: Request) -> None:
        pass

    def tend(self) -> None:
        pass

    def drop(self) -> None:
        pass


NO_ROLE = NoRole()
