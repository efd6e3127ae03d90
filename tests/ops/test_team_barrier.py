"""Threads of a team wait for each other, with and without sleep, and one team runs at a time."""

import ctypes
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from support.torch_threads import torch_threads

pytest.importorskip("numba")
from numba import carray

from outrider.ops.compiled.address import pointer_to
from outrider.ops.compiled.atomic_numbers import atomic_add, atomic_load
from outrider.ops.compiled.kernel_cache import callback
from outrider.ops.compiled.openmp import num_threads, parallel, thread_index
from outrider.ops.compiled.team_barrier import (
    call_and_wait,
    read_ticks,
    total_lag,
    wait_after_unequal_work,
    wait_for_team,
)
from outrider.ops.compiled.thread_team import run_team, run_team_at

ROUNDS, CALLS = 300, 20


@callback("void(voidptr)")
def count_rounds(pointer: int) -> None:
    """Every thread writes the round, waits, and counts the threads whose round is another."""
    given = carray(pointer, (3,), np.int64)
    rounds = carray(pointer_to(given[1]), (num_threads(),), np.int64)
    wrong = carray(pointer_to(given[2]), (num_threads(),), np.int64)
    for number in range(1, given[0] + 1):
        rounds[thread_index()] = number
        wait_for_team()
        for other in range(num_threads()):
            wrong[thread_index()] += rounds[other] != number
        wait_for_team()


def team_of(threads):
    """What `count_rounds` reads, and the tensors it writes: faults and rounds of each thread."""
    rounds, wrong = torch.zeros(2, threads, dtype=torch.int64)
    return (ROUNDS, rounds.data_ptr(), wrong.data_ptr()), rounds, wrong


@pytest.mark.parametrize("threads", [1, 2, 7])  # the last of them have to sleep
def test_no_thread_passes_a_barrier_before_all_have_come(threads):
    for _ in range(CALLS):
        given, rounds, wrong = team_of(threads)
        values = (ctypes.c_int64 * len(given))(*given)
        parallel(count_rounds.address, ctypes.addressof(values), threads, 0)
        assert (wrong.tolist(), rounds.tolist()) == ([0] * threads, [ROUNDS] * threads)


def run_rounds(threads):
    """The faults, and the last round of the first thread."""
    given, rounds, wrong = team_of(threads)
    run_team(int(count_rounds.address), given)
    return int(wrong.sum()), int(rounds[0])


def test_teams_of_several_callers_do_not_meet_at_a_barrier():
    with torch_threads(2), ThreadPoolExecutor(3) as callers:
        found = list(callers.map(run_rounds, [2] * 3 * CALLS))
    assert found == [(0, ROUNDS)] * 3 * CALLS


@callback("void(voidptr)")
def meet(pointer: int) -> None:
    """Wait until two calls are here, or for a second or so."""
    given = carray(pointer, (1,), np.int64)
    atomic_add(given.ctypes.data, 1)
    for _ in range(1_000_000_000):
        if atomic_load(given.ctypes.data) == 2:
            return
    given[0] = -10


def test_callers_with_one_thread_run_at_the_same_time():
    present = torch.zeros(1, dtype=torch.int64)

    def call(_):
        torch.set_num_threads(1)  # of this caller
        run_team_at(int(meet.address), present.data_ptr())

    with torch_threads(1), ThreadPoolExecutor(2) as callers:
        list(callers.map(call, range(2)))
    assert present.tolist() == [2]


@callback("void(voidptr)")
def come_late(pointer: int) -> None:
    """The last thread takes some milliseconds: it was late, or had more to do."""
    given = carray(pointer, (2,), np.int64)
    if thread_index() == num_threads() - 1:
        for _ in range(given[0]):
            atomic_add(given.ctypes.data, 0)
    if given[1]:
        wait_after_unequal_work()


def late_call(threads, *, has_more_to_do=False):
    """The lag of a team whose last thread comes late, and the ticks that its call took."""
    before, began = total_lag(), read_ticks()
    late = (ctypes.c_int64 * 2)(3_000_000, has_more_to_do)
    call = (ctypes.c_int64 * 2)(int(come_late.address), ctypes.addressof(late))
    parallel(call_and_wait.address, ctypes.addressof(call), threads, 0)
    took = read_ticks() - began
    return total_lag() - before, took


@pytest.mark.parametrize("threads", [2, 3])
def test_a_late_thread_is_the_lag_of_its_team_without_a_barrier_of_its_own(threads):
    """The first thread may come late, too, where another process has its core for a while."""
    calls = [late_call(threads) for _ in range(10)]
    assert all(lag < took for lag, took in calls)
    assert max(lag / took for lag, took in calls) > 0.5


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_that_had_less_to_do_do_not_make_a_team_lag(threads):
    """One row has few key heads; its other threads would be taken away on a quiet machine."""
    calls = [late_call(threads, has_more_to_do=True) for _ in range(10)]
    assert min(lag / took for lag, took in calls) < 0.1


def test_one_thread_waits_for_no_other():
    assert late_call(1)[0] == 0
