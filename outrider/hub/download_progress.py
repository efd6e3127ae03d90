"""How long work tells somebody how far it is. Drawing is in `bars`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

UNKNOWN_TOTAL = 0


class Reporter(Protocol):
    """Hears of one task at a time; amounts are bytes."""

    def start(self, task: str, total: int) -> None: ...  # total may be UNKNOWN_TOTAL
    def advance(self, amount: int) -> None: ...
    def finish(self) -> None: ...


class SilentReporter:
    """Says nothing."""

    def start(self, task: str, total: int) -> None:
        pass

    def advance(self, amount: int) -> None:
        pass

    def finish(self) -> None:
        pass


@contextmanager
def reported(reporter: Reporter, task: str, total: int) -> Iterator[Callable[[int], None]]:
    """The `advance` of a task that is finished however the body ends."""
    reporter.start(task, total)
    try:
        yield reporter.advance
    finally:
        reporter.finish()
