"""Executors run the same program on the same plan; they differ in cost, never in result."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from outrider.plan.plan import StepPlan

T = TypeVar("T")


class Executor(Protocol):
    """Runs a program: a pure function of its plan, the weights and the device tables."""

    def run(self, program: Callable[[StepPlan], T], plan: StepPlan) -> T: ...


class EagerExecutor:
    """Calls the program."""

    def run(self, program: Callable[[StepPlan], T], plan: StepPlan) -> T:
        return program(plan)
