"""Bounds on the memory that a long-running process holds: compiled code and free heap."""

import ctypes
import mmap
import os

# oneDNN compiles code for every number of rows: 3 MB and 2 ms each for a model of 135M parameters.
# By default it caches a thousand, half a gigabyte, for sizes that hardly ever come again.
_CODE_CAPACITY = "128"


def bound_code_cache() -> None:
    """Let oneDNN cache less code, unless the user chose a size. Call before torch is imported."""
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", _CODE_CAPACITY)


def release_free_memory() -> bool:
    """Return free heap memory to the operating system; False if the C library cannot do that."""
    try:
        trim = ctypes.CDLL(None).malloc_trim  # glibc's
    except AttributeError:
        return False
    trim(0)
    return True


def resident_bytes() -> int:
    """Bytes of this process in memory; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * mmap.PAGESIZE
    except FileNotFoundError:  # not Linux
        return 0
