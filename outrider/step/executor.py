"""Executors run the same program on the same plan; they differ in cost, never in result."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from outrider.step.plan import StepPlan

T = TypeVar("T")


class Executor(Protocol):
    """Runs a program: a pure function of its plan, the weights and the device tables."""

    num_eager: int  # steps that ran without a captured graph
    num_uncapturable: int  # shapes whose capture failed

    def run(self, program: Callable[[StepPlan], T], plan: StepPlan) -> T: ...


class EagerExecutor:
    """Calls the program."""

    num_uncapturable = 0

    def __init__(self) -> None:
        self.num_eager = 0

    def run(self, program: Callable[[StepPlan], T], plan: StepPlan) -> T:
        self.num_eager += 1
        return program(plan)
