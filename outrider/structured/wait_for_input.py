"""Waits for bytes of another process, with a time limit."""

import select
from typing import Protocol


class HasDescriptor(Protocol):
    """A socket or a pipe."""

    def fileno(self) -> int: ...


def wait_for_input(source: HasDescriptor, timeout_s: float) -> bool:
    """Whether bytes, or the end of the other side, can be read within this time."""
    poll = select.poll()  # select.select refuses descriptors from 1024 on
    poll.register(source.fileno(), select.POLLIN)
    return bool(poll.poll(1000 * timeout_s))
