"""How many threads torch uses: tests run with one."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(num: int) -> Iterator[None]:
    """That many threads inside, and as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(num)
    try:
        yield
    finally:
        torch.set_num_threads(before)
