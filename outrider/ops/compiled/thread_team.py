"""Runs a compiled function on a team of torch's threads, or on this thread alone.

A function runs once on every thread of a team, and asks for its place in the team (`openmp`).
"""

import ctypes
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
from torch.autograd import profiler

from outrider.ops.compiled.kernel_cache import name_of
from outrider.ops.compiled.openmp import parallel
from outrider.ops.compiled.team_barrier import call_and_wait, read_ticks, total_lag
from outrider.ops.compiled.team_size import TeamSize

_FEW_PRODUCTS = 1 << 18  # that one thread has added up before another one has begun
_UNSEEN = nullcontext()

_one_team = threading.Lock()  # the barrier is one for the process (`team_barrier`)
_team_size = TeamSize()


def run_team(function: int, arguments: Sequence[int]) -> "ctypes.Array[ctypes.c_int64]":
    """Call the compiled function at this address on all threads; returns the array of integers."""
    values = (ctypes.c_int64 * len(arguments))(*arguments)
    run_team_at(function, ctypes.addressof(values))
    return values


def run_team_at(function: int, address: int) -> None:
    """Call the compiled function on all threads, with an array of integers at this address."""
    most = torch.get_num_threads()
    with _named(function):
        if most == 1:  # it waits for no other thread, so callers need not take turns
            _callable(function)(address)
            return
        with _one_team:
            _run_team(function, address, most)


def _run_team(function: int, address: int, most: int) -> None:
    began, lag = read_ticks(), total_lag()
    size = _team_size.choose(most, now=began)
    if size == 1:
        _callable(function)(address)
        return
    call = (ctypes.c_int64 * 2)(function, address)
    parallel(call_and_wait.address, ctypes.addressof(call), size, 0)
    now = read_ticks()
    _team_size.note(now - began, lag=total_lag() - lag, now=now)


def run_alone(function: int, arguments: Sequence[int]) -> "ctypes.Array[ctypes.c_int64]":
    """Call the compiled function at this address on this thread; returns the array of integers."""
    values = (ctypes.c_int64 * len(arguments))(*arguments)
    with _named(function):
        _callable(function)(ctypes.addressof(values))
    return values


def run_products(
    function: int, arguments: Sequence[int], *, num: int
) -> "ctypes.Array[ctypes.c_int64]":
    """Call a compiled function that adds up so many products: few of them on this thread alone."""
    run = run_alone if num < _FEW_PRODUCTS else run_team
    return run(function, arguments)


def _named(function: int) -> AbstractContextManager[object]:
    """A profiler sees operations of torch alone, so it is told the name of a compiled function."""
    if profiler._is_profiler_enabled:
        return profiler.record_function(name_of(function))  # 6 us
    return _UNSEEN


@cache
def _callable(function: int) -> "ctypes._FuncPointer":
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)
