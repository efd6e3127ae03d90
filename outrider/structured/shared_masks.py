"""Memory that an engine shares with its matcher processes: masks, and which row is matched now."""

import errno
import mmap
import os
from collections import deque

import numpy as np
import numpy.typing as npt

NUM_SLOTS = 1024  # one per live process
_SLOT_BYTES = NUM_SLOTS * 8

Masks = npt.NDArray[np.int32]


class SharedMasks:
    """Owns a mapping of the memory. Pages that nothing was written to take no memory."""

    def __init__(self, fd: int, *, rows: int, words: int) -> None:
        size = _SLOT_BYTES + rows * words * np.dtype(np.int32).itemsize
        if os.fstat(fd).st_size < size:
            os.ftruncate(fd, size)
        self.fd = fd
        memory = mmap.mmap(fd, size)
        self.running: npt.NDArray[np.int64] = np.frombuffer(memory, np.int64, NUM_SLOTS)
        flat = np.frombuffer(memory, np.int32, rows * words, offset=_SLOT_BYTES)
        self.bits: Masks = flat.reshape(rows, words)
        # Only the owner takes slots. It does so in two threads: a deque needs no lock.
        self._free_slots = deque(range(NUM_SLOTS))

    def take_slot(self) -> int:
        """A slot for a new process. Raises OSError if every slot has a live process."""
        try:
            return self._free_slots.popleft()
        except IndexError:
            raise OSError(errno.EAGAIN, f"{NUM_SLOTS} matcher processes run already") from None

    def free_slot(self, slot: int) -> None:
        """Give back the slot of a process that has ended."""
        self._free_slots.append(slot)


def create_masks(*, rows: int, words: int) -> SharedMasks:
    """New memory. It is freed when no process uses it any more."""
    return SharedMasks(os.memfd_create("outrider-masks"), rows=rows, words=words)
