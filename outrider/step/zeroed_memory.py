"""Zeroed tensors that take memory only where they are written."""

import math
import mmap

import torch


def zeroed(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros of this shape.

    On a CPU they are pages of zeros that the operating system provides at the first write, so a
    cache or a table sized for the largest case is resident only as far as it is used.
    `torch.zeros` writes all of them at once.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or num_bytes < mmap.PAGESIZE:
        return torch.zeros(shape, dtype=dtype, device=device)
    try:
        pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:  # the limits of the process, or a system that never overcommits
        raise MemoryError(f"cannot allocate {num_bytes} bytes: {error.strerror}") from error
    return torch.frombuffer(pages, dtype=torch.uint8).view(dtype).view(shape)
