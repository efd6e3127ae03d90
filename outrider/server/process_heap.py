"""What a process of many steps would keep for good: holes in its heap, and compiled code."""

import ctypes
import os

# oneDNN compiles for every number of rows: 3 MB and 2 ms each for a model of 135M parameters. By
# default it keeps a thousand pieces of code, half a gigabyte, for steps that hardly come again.
_KEPT_CODE = "128"


def bound_code() -> None:
    """Keep less compiled code, unless the user chose; before torch is loaded, which reads it."""
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", _KEPT_CODE)


def give_back() -> bool:
    """Return free memory to the machine; False where the C library knows no such thing."""
    try:
        trim = ctypes.CDLL(None).malloc_trim  # glibc's
    except AttributeError:
        return False
    trim(0)
    return True
