"""Runs a compiled function on the threads that torch computes with.

Two pools of threads on the same cores would wait for each other, and torch's threads spin for a
while after every operation. So compiled functions run on torch's own pool, which is GNU OpenMP in
torch's wheels for Linux. A function runs once on every thread, and asks for its place in the team.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm
import torch
from numba import types

_SYMBOLS = {  # our names, because another OpenMP may be in the process
    "outrider_thread_index": "omp_get_thread_num",
    "outrider_num_threads": "omp_get_num_threads",
    "outrider_wait_for_team": "GOMP_barrier",
}
_MAPS = Path("/proc/self/maps")

# For compiled functions: the place of this thread, the size of the team, and a barrier.
thread_index = types.ExternalFunction("outrider_thread_index", types.int32())
num_threads = types.ExternalFunction("outrider_num_threads", types.int32())
wait_for_team = types.ExternalFunction("outrider_wait_for_team", types.void())


def has_team() -> bool:
    """Whether torch's threads can be used."""
    return _LIBRARY is not None


def run_team(function: int, arguments: Sequence[int]) -> None:
    """Call the compiled function at this address on all threads, with an array of integers."""
    values = (ctypes.c_int64 * len(arguments))(*arguments)
    _parallel()(function, values, torch.get_num_threads(), 0)


@cache
def _parallel() -> "ctypes._NamedFuncPointer":
    assert _LIBRARY is not None, "has_team was asked first"
    call = _LIBRARY.GOMP_parallel
    call.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    call.restype = None
    return call


def _openmp_of_torch() -> ctypes.CDLL | None:
    """The OpenMP library that torch has loaded, if it is GNU's; compiled functions may call it."""
    if not _MAPS.is_file():
        return None
    paths = {line.split()[-1] for line in _MAPS.read_text().splitlines() if "libgomp" in line}
    beside_torch = sorted(paths, key=lambda path: "torch" not in path)
    if not beside_torch:
        return None
    library = ctypes.CDLL(beside_torch[0])
    for ours, theirs in _SYMBOLS.items():
        llvm.add_symbol(ours, ctypes.cast(library[theirs], ctypes.c_void_p).value)
    return library


_LIBRARY = _openmp_of_torch()
