"""Runs a compiled function on the threads that torch computes with.

Two pools of threads on the same cores would wait for each other, and torch's threads spin for a
while after every operation. So compiled functions run on torch's own pool, which is GNU OpenMP in
torch's wheels for Linux; with another one the import of this file fails. A function runs once on
every thread, and asks for its place in the team.
"""

import ctypes
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm
import torch
from numba import types
from torch.autograd import profiler

from outrider.ops.compiled.kernel_cache import name_of

_SYMBOLS = {  # our names, because another OpenMP may be in the process
    "outrider_thread_index": "omp_get_thread_num",
    "outrider_num_threads": "omp_get_num_threads",
    "outrider_wait_for_team": "GOMP_barrier",
}
_PARALLEL = "GOMP_parallel"
_UNSEEN = nullcontext()

# For compiled functions: the place of this thread, the size of the team, and a barrier.
thread_index = types.ExternalFunction("outrider_thread_index", types.int32())
num_threads = types.ExternalFunction("outrider_num_threads", types.int32())
wait_for_team = types.ExternalFunction("outrider_wait_for_team", types.void())


def run_team(function: int, arguments: Sequence[int]) -> "ctypes.Array[ctypes.c_int64]":
    """Call the compiled function at this address on all threads; returns the array of integers."""
    values = (ctypes.c_int64 * len(arguments))(*arguments)
    run_team_at(function, ctypes.addressof(values))
    return values


def run_team_at(function: int, address: int) -> None:
    """Call the compiled function on all threads, with an array of integers at this address."""
    with _named(function):
        _parallel()(function, address, torch.get_num_threads(), 0)


def run_alone(function: int, arguments: Sequence[int]) -> "ctypes.Array[ctypes.c_int64]":
    """Call the compiled function at this address on this thread; returns the array of integers."""
    values = (ctypes.c_int64 * len(arguments))(*arguments)
    with _named(function):
        _callable(function)(ctypes.addressof(values))
    return values


def _named(function: int) -> AbstractContextManager[object]:
    """A profiler sees operations of torch alone, so it is told the name of a compiled function."""
    if profiler._is_profiler_enabled:
        return profiler.record_function(name_of(function))  # 6 us
    return _UNSEEN


@cache
def _callable(function: int) -> "ctypes._FuncPointer":
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)


@cache
def _parallel() -> "ctypes._NamedFuncPointer":
    call = _LIBRARY[_PARALLEL]
    call.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    call.restype = None
    return call


def _openmp_of_torch() -> ctypes.CDLL:
    """torch's own library. Its symbols include those of the OpenMP library that it is linked to.

    Other packages may have loaded other copies of OpenMP, so a library is not looked for by name.
    """
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    try:
        functions = {ours: library[theirs] for ours, theirs in _SYMBOLS.items()}
        library[_PARALLEL]
    except AttributeError as error:
        raise ImportError("torch does not compute with the threads of GNU OpenMP") from error
    for ours, function in functions.items():
        llvm.add_symbol(ours, ctypes.cast(function, ctypes.c_void_p).value)
    return library


_LIBRARY = _openmp_of_torch()
