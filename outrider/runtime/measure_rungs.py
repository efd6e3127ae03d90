"""Dummy runs that tell what drafts cost on this machine before the first request."""

import time
from collections.abc import Iterator, Sequence

from outrider.runtime.runner import Runner
from outrider.runtime.warmup import Rungs, decode_shape
from outrider.step.buckets import Buckets
from outrider.step.shape import StepShape
from outrider.wire.draft_budget import PLAIN_RUNG, Rung
from outrider.wire.runner_facts import RungCost

HOST_S = 0.25  # for all measurements; `generate` starts in about 3 s
DEVICE_S = 1.0  # captures take several
_NUM_RUNS = 2  # of a shape
_FEW_ROWS, _FEW_ROWS_RUNS = (
    2,
    5,
)  # steps of few rows are short, and their drafts pay or not by little
_SLOW_SHARE = 0.25  # of the time for all: where one step takes so long, no more are measured


def measure_rungs(
    runner: Runner, buckets: Buckets, rungs: Rungs, *, most_rows: int, most_s: float
) -> tuple[RungCost, ...]:
    """Time decode steps of 1, 2, 4, ... rows: plain, with the fewest drafts and with the most.

    Few rows come first: a slow machine has time for those alone.
    """
    costs: list[RungCost] = []
    end_s = time.perf_counter() + most_s
    for rows, timed in _sizes(buckets, rungs, most_rows):
        shapes = [decode_shape(rows, rung, buckets) for rung in timed]
        if not costs and _time(runner, shapes[0]) > most_s:
            break  # even with weights from cold memory a step takes less; else it does not count
        if _time(runner, shapes[0]) > _SLOW_SHARE * most_s:
            break
        num_runs = _FEW_ROWS_RUNS if rows <= _FEW_ROWS else _NUM_RUNS
        seconds = _fastest(runner, shapes, num_runs=num_runs)
        costs += [
            RungCost(rows=rows, drafts=rung.drafts, seconds=took)
            for rung, took in zip(timed, seconds, strict=True)
        ]
        if time.perf_counter() > end_s:
            break
    return tuple(costs)


def _sizes(
    buckets: Buckets, rungs: Rungs, most_rows: int
) -> Iterator[tuple[int, tuple[Rung, ...]]]:
    rows = 1
    while rows <= most_rows:
        size = buckets.rows.up(rows)
        alike = {rung for rung in rungs(size) if not rung.is_shared}
        drafted = sorted(alike - {PLAIN_RUNG}, key=lambda rung: rung.drafts)
        yield size, tuple(dict.fromkeys((PLAIN_RUNG, *drafted[:1], *drafted[-1:])))
        rows = 2 * size


def _fastest(runner: Runner, shapes: Sequence[StepShape], *, num_runs: int) -> list[float]:
    """Seconds of the fastest run of each shape; in turns, because a machine slows for a while."""
    runs = [[_time(runner, shape) for shape in shapes] for _ in range(num_runs)]
    return [min(each) for each in zip(*runs, strict=True)]


def _time(runner: Runner, shape: StepShape) -> float:
    began = time.perf_counter()
    runner.dummy_run(shape)
    return time.perf_counter() - began
