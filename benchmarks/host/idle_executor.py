"""An executor that runs nothing and returns the same tokens at once."""

from collections.abc import Callable
from typing import TypeVar

import torch

from outrider.runtime.step_output import PackedOutput
from outrider.step.plan import StepPlan
from outrider.step.shape import StepShape

T = TypeVar("T")


class IdleExecutor:
    """Owns the output of the last plan. Nothing runs on the device."""

    num_uncapturable = 0

    def __init__(self, *, emitted: int, device: torch.device) -> None:
        self.num_eager = 0
        self._emitted = emitted  # tokens of a row and step, where its budget allows
        self._device = device
        self._latest: tuple[tuple[StepPlan, PackedOutput], ...] = ()

    def cover(self, shape: StepShape) -> StepShape:
        return shape

    def prepare(self, program: Callable[[StepPlan], T], plan: StepPlan) -> None:
        pass

    def run(self, program: Callable[[StepPlan], T], plan: StepPlan) -> T:
        """An output like the program's, without running the program."""
        del program
        return self._output(plan)  # type: ignore[return-value]

    def _output(self, plan: StepPlan) -> PackedOutput:
        if not (self._latest and self._latest[0][0] is plan):
            self._latest = ((plan, self._make(plan.shape)),)
        return self._latest[0][1]

    def _make(self, shape: StepShape) -> PackedOutput:
        """Every row emits `emitted` times token 0."""
        rows, most = shape.rows, shape.tree.most_emitted
        num_accepted = torch.full((rows,), min(self._emitted, most) - 1)
        drafted = torch.full((rows,), shape.nodes - 1)
        rest = 2 * rows * most + shape.chunk.rows + shape.num_sampled
        return PackedOutput(
            integers=torch.cat([num_accepted, drafted, torch.zeros(rest, dtype=torch.int64)]).to(
                self._device
            ),
            reals=torch.zeros(0, device=self._device),
        )
