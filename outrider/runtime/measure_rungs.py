"""Dummy runs that tell what drafts cost on this machine before the first request."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

from outrider.runtime.runner import Runner
from outrider.runtime.warmup import Rungs, decode_shape
from outrider.step.buckets import Buckets
from outrider.step.shape import StepShape
from outrider.wire.draft_budget import PLAIN_RUNG, Rung
from outrider.wire.runner_facts import RungCost

HOST_S = 0.25  # for all numbers of rows; `generate` starts in about 3 s
DEVICE_S = 1.0  # captures take several
_NUM_RUNS = 2  # of a shape
_NUM_SHORT, _MORE_RUNS = 2, 3  # steps of few rows are short, and their drafts pay or not by little
_SLOW_SHARE = 0.25  # of the time for all: where one step takes so long, no more are measured


@dataclass(slots=True)
class _Timed:
    """A number of rows: the rungs that are timed, and the seconds of the fastest run of each."""

    rows: int
    rungs: tuple[Rung, ...]
    shapes: list[StepShape]
    seconds: list[float]

    def run(self, runner: Runner, *, num_runs: int) -> None:
        """Time every shape so often; in turns, because a machine slows for a while."""
        for _ in range(num_runs):
            for place, shape in enumerate(self.shapes):
                self.seconds[place] = min(self.seconds[place], _time(runner, shape))


def measure_rungs(
    runner: Runner, buckets: Buckets, rungs: Rungs, *, most_rows: int, most_s: float
) -> tuple[RungCost, ...]:
    """Time decode steps of 1, 2, 4, ... rows: plain, with the fewest drafts and with the most.

    Few rows come first: a slow machine has time for those alone. It takes at most twice as long.
    """
    measured: list[_Timed] = []
    end_s = time.perf_counter() + most_s
    for rows, chosen in _sizes(buckets, rungs, most_rows):
        shapes = [decode_shape(rows, rung, buckets) for rung in chosen]
        if not measured and _time(runner, shapes[0]) > most_s:
            break  # even with weights from cold memory a step takes less; else it does not count
        if _time(runner, shapes[0]) > _SLOW_SHARE * most_s:
            break
        measured.append(_Timed(rows, chosen, shapes, [math.inf] * len(shapes)))
        measured[-1].run(runner, num_runs=_NUM_RUNS)
        if time.perf_counter() > end_s:
            break
    for size in measured[:_NUM_SHORT] * _MORE_RUNS:
        if time.perf_counter() > end_s + most_s:
            break
        size.run(runner, num_runs=1)
    return tuple(
        RungCost(rows=size.rows, drafts=rung.drafts, seconds=took)
        for size in measured
        for rung, took in zip(size.rungs, size.seconds, strict=True)
    )


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


def _time(runner: Runner, shape: StepShape) -> float:
    began = time.perf_counter()
    runner.dummy_run(shape)
    return time.perf_counter() - began
