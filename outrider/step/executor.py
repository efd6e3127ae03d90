"""Executors run the same program on the same plan; they differ in cost, never in result."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from outrider.step.plan import StepPlan
from outrider.step.shape import StepShape

T = TypeVar("T")


class Executor(Protocol):
    """Runs a program: a pure function of its plan, the weights and the device tables."""

    num_eager: int  # steps that ran without a captured graph
    num_uncapturable: int  # shapes whose capture failed

    def cover(self, shape: StepShape) -> StepShape:
        """The shape to run instead: itself, or one with more padding that is captured already."""
        ...

    def prepare(self, program: Callable[[StepPlan], T], plan: StepPlan) -> None:
        """Capture a plan without running it, if this executor captures."""
        ...

    def run(self, program: Callable[[StepPlan], T], plan: StepPlan) -> T: ...


class EagerExecutor:
    """Calls the program."""

    num_uncapturable = 0

    def __init__(self) -> None:
        self.num_eager = 0

    def cover(self, shape: StepShape) -> StepShape:
        return shape

    def prepare(self, program: Callable[[StepPlan], T], plan: StepPlan) -> None:
        pass

    def run(self, program: Callable[[StepPlan], T], plan: StepPlan) -> T:
        self.num_eager += 1
        return program(plan)
