"""Steps of decode rows with prompts beside them, against decode steps of as many query tokens.

A new prompt comes before every step. It asks for one token, so its request ends with the step that
reads it, and the decode rows stay the same.
"""

import random
import statistics
import time
from dataclasses import dataclass

from benchmarks.steps.bench_engine import BenchEngine
from benchmarks.steps.bench_engines import BenchTarget, Drafting, build, reach_of
from benchmarks.steps.mixed_args import CONTEXT, MixedCase, MixedWork
from benchmarks.steps.steady_rows import submission, under_way
from benchmarks.steps.step_args import SKIPPED, Case, StepWork
from outrider.bench.churn.churn_run import ChurnStep
from outrider.bench.churn.observed_runner import ObservedRunner
from outrider.errors import ConfigError
from outrider.wire.submission import Submission

_IN_FLIGHT = 4  # steps whose prompts can hold rows at the same time
_SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Steps of one kind; medians."""

    step_s: float  # wall time from one result to the next
    busy_s: float  # on the device
    num: int
    num_eager: int  # without a captured graph


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPoint:
    """A case, measured."""

    case: MixedCase
    mixed: StepTimes
    alone: StepTimes  # decode rows of as many query tokens

    @property
    def ratio(self) -> float:
        return self.mixed.step_s / self.alone.step_s


class MixedBench:
    """Owns an engine with room for all cases of one way to decode."""

    def __init__(
        self, target: BenchTarget, drafting: Drafting, work: MixedWork, *, nodes: int
    ) -> None:
        cases, steps = list(work.cases(nodes)), work.steps
        most = max(max(case.rows_alone, case.rows + _IN_FLIGHT * case.prompts) for case in cases)
        longest = StepWork(cases=(Case(rows=most, prompt=CONTEXT),), steps=2 * steps)
        budget = drafting.kind.facts.budget
        reach = reach_of(longest, budget, step_tokens=target.place.step_tokens)
        context = max(reach, max(case.prompt for case in cases) + budget.nodes + 2)
        loaded = build(target, drafting, rows=most, context=context)
        self._observed = ObservedRunner(loaded.runner)
        self._engine = BenchEngine(self._observed, loaded.engine.facts)
        self._steps = steps
        self._alone: dict[int, StepTimes] = {}  # by rows: cases share them

    def measure(self, case: MixedCase) -> MixedPoint:
        """Time both kinds of steps; the first run of each captures its shapes."""
        if case.rows_alone not in self._alone:
            self._alone[case.rows_alone] = self._second_run(
                MixedCase(rows=case.rows_alone, nodes=case.nodes, prompts=0, prompt=0)
            )
        mixed = self._second_run(case)
        return MixedPoint(case=case, mixed=mixed, alone=self._alone[case.rows_alone])

    def _second_run(self, case: MixedCase) -> StepTimes:
        self._time(case)
        return self._time(case)

    def _time(self, case: MixedCase) -> StepTimes:
        """Time steps from one result to the next; adding requests is a part of it."""
        engine, observed, found = self._engine, self._observed, []
        arrivals = self._prompts(case)
        with under_way(engine, Case(rows=case.rows, prompt=CONTEXT)):
            last = time.perf_counter()
            for number, prompts in enumerate(arrivals):
                for prompt in prompts:
                    engine.add(prompt)
                before = len(observed.steps)
                engine.step()
                seconds, last = time.perf_counter() - last, time.perf_counter()
                ended = observed.steps[before:]
                if number >= SKIPPED and len(ended) == 1 and _is_of(ended[0], case):
                    found.append((seconds, ended[0]))
        observed.steps.clear()
        return _times_of(found, self._steps)

    def _prompts(self, case: MixedCase) -> list[list[Submission]]:
        """The prompts that come before each step."""
        draw, vocab, size = random.Random(_SEED), self._engine.vocab_size, case.prompt
        return [
            [
                submission(f"{step}.{place}", draw, prompt=size, vocab=vocab, max_tokens=1)
                for place in range(case.prompts)
            ]
            for step in range(SKIPPED + self._steps)
        ]


def _is_of(step: ChurnStep, case: MixedCase) -> bool:
    return (step.decode_tokens, step.prompt_tokens) == (case.decode_tokens, case.prompt_tokens)


def _times_of(found: list[tuple[float, ChurnStep]], wanted: int) -> StepTimes:
    if len(found) < wanted // 2:
        raise ConfigError(
            f"only {len(found)} of {wanted} steps had the prompts beside all rows; lower --rows, "
            "--lengths or --prompts"
        )
    return StepTimes(
        step_s=statistics.median(seconds for seconds, _ in found),
        busy_s=statistics.median(step.busy_s for _, step in found),
        num=len(found),
        num_eager=sum(step.is_eager for _, step in found),
    )
