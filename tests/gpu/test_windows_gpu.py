"""The kernels of draft modules' windows, compiled, against the torch reference."""

import pytest
from support.window_cases import check_windows


@pytest.mark.parametrize("seed", range(16))
def test_windows_and_memories_are_those_of_the_reference(seed):
    check_windows(seed, "cuda", size=(37, 4096, 7168)[seed % 3])
