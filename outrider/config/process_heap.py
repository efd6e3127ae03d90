"""Bounds on the memory that a long-running process holds: compiled code, free heap, read files."""

import ctypes
import mmap
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

# oneDNN compiles code for every number of rows: 3 MB and 2 ms each for a model of 135M parameters.
# By default it caches a thousand, half a gigabyte, for sizes that hardly ever come again.
_CODE_CAPACITY = "128"


def bound_code_cache() -> None:
    """Let oneDNN cache less code, unless the user chose a size. Call before torch is imported."""
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", _CODE_CAPACITY)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt
_LOADING_BLOCK, _USUAL_BLOCK = 1 << 20, 32 << 20  # bytes; the second is what glibc grows to

# Files whose pages are resident once they were read, and can be read again.
_mappings: "weakref.WeakSet[mmap.mmap]" = weakref.WeakSet()


def note_mapping(mapping: mmap.mmap) -> None:
    """From now on `release_free_memory` drops the pages of this file, too. It is never written."""
    _mappings.add(mapping)


def release_free_memory() -> bool:
    """Return free heap memory to the operating system; False if the C library cannot do that.

    Pages of mapped files are dropped, too: with each row of an embedding, the system maps 64 KB.
    """
    for mapping in list(_mappings):
        mapping.madvise(mmap.MADV_DONTNEED)
    try:
        trim = ctypes.CDLL(None).malloc_trim  # glibc's
    except AttributeError:
        return False
    trim(0)
    return True


@contextmanager
def tight_heap() -> Iterator[None]:
    """Return large blocks to the system when they are freed, while a model is loaded.

    Otherwise glibc raises its threshold to 32 MB with the first such block, keeps all smaller ones
    for later, and a model of small tensors takes up to twice its memory while it is loaded.
    """
    _bound_heap(_LOADING_BLOCK)
    try:
        yield
    finally:
        _bound_heap(_USUAL_BLOCK)


def _bound_heap(least: int) -> None:
    """Blocks of so many bytes are mappings of their own; twice as much free memory is trimmed."""
    try:
        set_option = ctypes.CDLL(None).mallopt  # glibc's
    except AttributeError:
        return
    set_option(_M_MMAP_THRESHOLD, least)
    set_option(_M_TRIM_THRESHOLD, 2 * least)


def resident_bytes() -> int:
    """Bytes of this process in memory; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * mmap.PAGESIZE
    except FileNotFoundError:  # not Linux
        return 0
