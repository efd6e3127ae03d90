"""A process that uses a core all the time, as the front process of a busy server does."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# It ends when its parent is gone, so that a killed benchmark leaves nothing behind.
_BUSY = """
import os, sys
while os.getppid() == int(sys.argv[1]):
    for _ in range(1_000_000):
        pass
"""


@contextmanager
def busy_process() -> Iterator[None]:
    """Run the body while one busy process runs."""
    command = [sys.executable, "-c", _BUSY, str(os.getpid())]
    with subprocess.Popen(command) as process:
        try:
            yield
        finally:
            process.kill()
