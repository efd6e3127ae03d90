"""Progress of downloads and conversions. `download_bars` draws it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

UNKNOWN_TOTAL = 0


class Reporter(Protocol):
    """Receives the progress of one task at a time, in bytes."""

    def start(self, task: str, total: int) -> None: ...  # total may be UNKNOWN_TOTAL
    def advance(self, amount: int) -> None: ...
    def finish(self) -> None: ...


class SilentReporter:
    """Ignores progress."""

    def start(self, task: str, total: int) -> None:
        pass

    def advance(self, amount: int) -> None:
        pass

    def finish(self) -> None:
        pass


@contextmanager
def reported(reporter: Reporter, task: str, total: int) -> Iterator[Callable[[int], None]]:
    """The `advance` of a new task. The task is finished even if the body raises."""
    reporter.start(task, total)
    try:
        yield reporter.advance
    finally:
        reporter.finish()
