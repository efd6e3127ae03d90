"""The tiny model of the benchmarks, and a torch whose number of threads is restored."""

from collections.abc import Iterator

import pytest
import torch
from support.tiny_folder import tiny_folder

__all__ = ["tiny_folder"]


@pytest.fixture(scope="module", autouse=True)
def _own_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
