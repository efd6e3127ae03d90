"""Ends a run after some seconds, so that its servers end and what it has measured stays."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn


@contextmanager
def time_limit(limit_s: float) -> Iterator[None]:
    """Raise SystemExit in the main thread when the time is over; 0: never."""

    def end(*_: Any) -> NoReturn:
        raise SystemExit(f"the limit of {limit_s:g} s is over; all parts before are written")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
