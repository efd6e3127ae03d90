"""Ctrl-C between steps instead of inside one, so that an interrupted engine stays whole."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from outrider.config.threads import choose_wait_policy


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Run the body to its end before a Ctrl-C counts; a second Ctrl-C does not wait."""
    handler = signal.getsignal(signal.SIGINT)
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or handler is not signal.default_int_handler:
        yield  # only the main thread gets KeyboardInterrupt; a handler of the caller stays
        return
    arrived: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        if arrived:
            signal.default_int_handler(number, frame)
        arrived.append(number)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if arrived:
        raise KeyboardInterrupt


def import_torch() -> None:
    """Import torch, and handle a Ctrl-C after that: during the import it may be lost or abort.

    Commands call this before they import modules that import torch. How idle threads wait is chosen
    here: beside other processes, spinning threads make steps ten times as long.
    """
    choose_wait_policy()
    with held_interrupts():
        import torch  # noqa: F401
