"""Returns the memory of ended calls to the operating system once the server is idle."""

import asyncio
import gc

from outrider.config.process_heap import release_free_memory

_DELAY_S = 1.0  # calls come in crowds, and the next one would take the memory again
_WORTH_BYTES = 2**23  # counted for calls since the last release; less is not worth the time


class IdleHeap:
    """Owns how much calls have taken since free memory was last released."""

    def __init__(self) -> None:
        self._taken = 0
        self._timer: asyncio.TimerHandle | None = None  # runs when no call came for a while

    def note_idle(self, most_bytes: int) -> None:
        """No call runs any more; they took up to so many bytes. Called on the event loop."""
        self._taken += most_bytes
        if self._timer is not None:
            self._timer.cancel()
        if self._taken >= _WORTH_BYTES:
            self._timer = asyncio.get_running_loop().call_later(_DELAY_S, self._release)

    def _release(self) -> None:
        """It takes tens of milliseconds, and the event loop has nothing else to do."""
        self._taken, self._timer = 0, None
        gc.collect()  # answers and their writers refer to each other
        release_free_memory()
