"""Steps of a real runner that fail on purpose, by number, and leave broken values behind."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import torch

from outrider.engine.engine import Engine
from outrider.runtime.runner import InFlightStep, Runner
from outrider.spec.model_drafter import ModelDrafter
from outrider.spec.mtp_drafter import ModuleDrafter
from outrider.step.executor import Executor
from outrider.step.plan import StepPlan
from outrider.step.shape import StepShape
from outrider.wire.scheduled_batch import ScheduledBatch


class Fault(RuntimeError):
    """What a kernel that fails raises."""


class BrokenEvent:
    """The end of a step that the device never reached."""

    has_passed = False

    def wait(self) -> None:
        raise Fault("the step broke on the device")

    def seconds_until(self, later: Any) -> float:
        raise AssertionError("the duration of a failed step is never read")


class FaultyExecutor:
    """Runs some steps to their end, makes all they wrote no numbers, and then fails them."""

    def __init__(self, executor: Executor, runner: Runner, at: Collection[int]) -> None:
        self._executor = executor
        self._state = runner._program.state
        self._drafter = runner._program.drafter._drafter
        self._at = at
        self._num_steps = 0

    def cover(self, shape: StepShape) -> StepShape:
        return self._executor.cover(shape)

    def prepare(self, program: Callable[[StepPlan], Any], plan: StepPlan) -> None:
        self._executor.prepare(program, plan)

    @property
    def num_eager(self) -> int:
        return self._executor.num_eager

    @property
    def num_uncapturable(self) -> int:
        return self._executor.num_uncapturable

    def run(self, program: Callable[[StepPlan], Any], plan: StepPlan) -> Any:
        self._num_steps += 1
        output = self._executor.run(program, plan)
        if self._num_steps in self._at:
            self._break(torch.cat([plan.decode.rows, plan.chunk.rows]))
            raise Fault("the step broke while it was submitted")
        return output

    def _break(self, rows: torch.Tensor) -> None:
        """The pages of these rows in all pools, and what the drafter remembers of them."""
        table, pages = self._state.rows, self._state.pages
        of_tables = (
            (table.pages, pages._pools),
            (table.window_pages, pages._window_pools),
        )
        for own, pools in of_tables:
            broken = own.index_select(0, rows).flatten()
            for layer in (layer for pool in pools for layer in pool.layers):
                layer.index_fill_(0, broken, float("nan"))
        if isinstance(self._drafter, ModelDrafter):
            self._drafter._hidden_states.index_fill_(0, rows, float("nan"))
        if isinstance(self._drafter, ModuleDrafter):
            self._drafter._pairs.pairs.aux_hidden_states.index_fill_(0, rows, float("nan"))


def break_steps(
    engine: Engine, *, at_submit: Collection[int] = (), at_wait: Collection[int] = ()
) -> None:
    """Let steps fail, counted from 1 among those of this engine that are yet to come."""
    runner = engine._runner
    assert isinstance(runner, Runner)
    runner._executor = FaultyExecutor(runner._executor, runner, at_submit)
    submit, numbers = runner.submit, iter(range(1, 10**9))

    def submit_some(batch: ScheduledBatch) -> InFlightStep:
        number, pending = next(numbers), submit(batch)
        if number in at_wait:
            pending._output = replace(pending._output, ready=BrokenEvent())
        return pending

    runner.submit = submit_some  # type: ignore[method-assign]
