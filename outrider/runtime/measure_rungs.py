"""Dummy runs that tell what drafts cost on this machine before the first request."""

import time
from collections.abc import Iterator

from outrider.runtime.runner import Runner
from outrider.runtime.warmup import Rungs, decode_shape
from outrider.step.buckets import Buckets
from outrider.step.shape import StepShape
from outrider.wire.draft_budget import PLAIN_RUNG, Rung
from outrider.wire.runner_facts import RungCost

HOST_S = 0.25  # for all measurements; `generate` starts in about 3 s
DEVICE_S = 1.0  # captures take several
_NUM_RUNS = 2  # of a shape: the first may compile functions or touch cold memory
_SLOW_SHARE = 0.25  # of the time for all: where one step takes so long, none is measured


def measure_rungs(
    runner: Runner, buckets: Buckets, rungs: Rungs, *, most_rows: int, most_s: float
) -> tuple[RungCost, ...]:
    """Time decode steps of 1, 2, 4, ... rows: plain, with the fewest drafts and with the most.

    Few rows come first: a slow machine has time for those alone.
    """
    costs: list[RungCost] = []
    end_s = time.perf_counter() + most_s
    for rows, rung in _cells(buckets, rungs, most_rows):
        seconds = _time(runner, decode_shape(rows, rung, buckets))
        if seconds > _SLOW_SHARE * most_s:
            break
        costs.append(RungCost(rows=rows, drafts=rung.drafts, seconds=seconds))
        if time.perf_counter() > end_s:
            break
    return tuple(costs)


def _cells(buckets: Buckets, rungs: Rungs, most_rows: int) -> Iterator[tuple[int, Rung]]:
    rows = 1
    while rows <= most_rows:
        size = buckets.rows.up(rows)
        drafted = sorted(set(rungs(size)) - {PLAIN_RUNG}, key=lambda rung: rung.drafts)
        for rung in dict.fromkeys((PLAIN_RUNG, *drafted[:1], *drafted[-1:])):
            yield size, rung
        rows = 2 * size


def _time(runner: Runner, shape: StepShape) -> float:
    """Seconds of the fastest run."""
    found = []
    for _ in range(_NUM_RUNS):
        began = time.perf_counter()
        runner.dummy_run(shape)
        found.append(time.perf_counter() - began)
    return min(found)
