"""Turns torch's errors about memory into ones that name the fix."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from outrider.errors import OutriderError

_NO_MEMORY = re.compile("allocate|out of memory|too large|overflow", re.IGNORECASE)  # of torch


@contextmanager
def explain_memory(message: str, kind: type[OutriderError]) -> Iterator[None]:
    """Raise `kind` with this message if the body does not get its memory."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch raises RuntimeError on a CPU
        is_memory = not isinstance(error, RuntimeError) or _NO_MEMORY.search(str(error))
        if not is_memory:
            raise
        raise kind(f"{message} ({error})") from error
