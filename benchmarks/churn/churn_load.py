"""Runs a load of requests through an engine and keeps what every step was and took."""

import random
import time
from dataclasses import dataclass

from benchmarks.churn.churn_args import ChurnArgs
from benchmarks.steps.bench_engines import LoadedEngine
from benchmarks.steps.steady_rows import submission
from outrider.engine.engine import Engine
from outrider.runtime.runner import InFlightStep, Runner
from outrider.wire.engine_stats import StepCounts
from outrider.wire.scheduled_batch import ScheduledBatch
from outrider.wire.step_result import StepResult

_SEED = 0
_AHEAD = 8  # requests that wait while all rows are in use


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnStep:
    """A step of the load."""

    decode_tokens: int  # node 0 and drafts of all rows
    prompt_tokens: int
    emitted: int
    is_eager: bool
    busy_s: float  # on the device
    submit_s: float  # of the host, until the step is launched

    @property
    def kind(self) -> str:
        if not self.prompt_tokens:
            return "decode"
        return "mixed" if self.decode_tokens else "prompts"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnRun:
    """One load, measured after a first run of the same load."""

    way: str
    rows: int
    seconds: float
    tokens: int  # of all answers
    steps: tuple[ChurnStep, ...]
    occupancy: float  # share of the time in which the device runs a step
    start_s: float = 0.0  # from weights in memory to an engine that is ready

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


class ObservedRunner:
    """A runner that keeps a record of its steps."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.steps: list[ChurnStep] = []

    @property
    def counts(self) -> StepCounts:
        return self._runner.counts

    def submit(self, batch: ScheduledBatch) -> "ObservedStep":
        began, num_eager = time.perf_counter(), self.counts.eager
        step = self._runner.submit(batch)
        return ObservedStep(
            step,
            batch,
            self.steps,
            submit_s=time.perf_counter() - began,
            is_eager=self.counts.eager > num_eager,
        )

    def restart(self) -> None:
        self._runner.restart()


class ObservedStep:
    """A step in flight that is recorded when its result is read."""

    def __init__(
        self,
        step: InFlightStep,
        batch: ScheduledBatch,
        steps: list[ChurnStep],
        *,
        submit_s: float,
        is_eager: bool,
    ) -> None:
        self._step = step
        self._batch = batch
        self._steps = steps
        self._submit_s = submit_s
        self._is_eager = is_eager

    def wait(self) -> StepResult:
        result = self._step.wait()
        self._steps.append(
            ChurnStep(
                decode_tokens=sum(budget.nodes for budget in self._batch.decodes.budgets),
                prompt_tokens=sum(len(chunk.tokens) for chunk in self._batch.chunks),
                emitted=sum(map(len, result.tokens)),
                is_eager=self._is_eager,
                busy_s=result.busy_s,
                submit_s=self._submit_s,
            )
        )
        return result


def run_load(loaded: LoadedEngine, args: ChurnArgs, *, way: str, rows: int) -> ChurnRun:
    """Run a short load to warm up, then the whole load, which counts."""
    runner = ObservedRunner(loaded.runner)
    engine = Engine(runner, loaded.engine.facts)
    _run(engine, args, rows=rows, requests=max(2 * rows, args.requests // 4))
    runner.steps.clear()
    loaded.runner.occupancy.restart()
    began = time.perf_counter()
    tokens = _run(engine, args, rows=rows, requests=args.requests)
    return ChurnRun(
        way=way,
        rows=rows,
        seconds=time.perf_counter() - began,
        tokens=tokens,
        steps=tuple(runner.steps),
        occupancy=loaded.runner.occupancy.share,
    )


def _run(engine: Engine, args: ChurnArgs, *, rows: int, requests: int) -> int:
    """All requests, at most `rows` of them at a time; returns how many tokens they emitted."""
    draw, emitted, num_added, num_ended = random.Random(_SEED), 0, 0, 0
    while num_ended < requests:
        while num_added < requests and num_added - num_ended < rows + _AHEAD:
            length = draw.randint(max(1, args.prompt // 2), args.prompt + args.prompt // 2)
            vocab = engine.vocab_size
            engine.add(
                submission(str(num_added), draw, prompt=length, vocab=vocab, max_tokens=args.answer)
            )
            num_added += 1
        for update in engine.step():
            emitted += len(update.tokens)
            num_ended += update.finish != "running"
    return emitted
