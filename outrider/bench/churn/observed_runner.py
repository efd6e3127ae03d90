"""A runner that keeps a record of every step: what ran, for how long, and whether eagerly."""

import time

from outrider.bench.churn.churn_run import ChurnStep
from outrider.runtime.runner import InFlightStep, Runner
from outrider.wire.embedded_span import EmbeddedSpan
from outrider.wire.engine_stats import StepCounts
from outrider.wire.scheduled_batch import ScheduledBatch
from outrider.wire.step_result import StepResult


class ObservedRunner:
    """Passes steps on to a runner, and lists them in the order of their results."""

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

    def find_tokens(self, span: EmbeddedSpan) -> tuple[int, ...]:
        return self._runner.find_tokens(span)

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
