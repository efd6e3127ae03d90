"""A machine that delays some steps, and what adaptive drafting makes of it."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from outrider.engine.adaptive.adaptation import Adaptation
from outrider.engine.draft_policy import StepLoad
from outrider.wire.draft_budget import PLAIN, Budget, Rung
from outrider.wire.runner_facts import RungCost

DELAY = 10.0  # a delayed step takes so many times its time
SPAN = 2000  # steps, of which the adversary may delay 1%
MOST_DELAYED = SPAN // 100


@dataclass(frozen=True, slots=True)
class Machine:
    """Seconds of a step by its query tokens, and how often a draft is accepted."""

    rows: int
    seconds: Callable[[int], float]
    accept_rate: float
    noise: float = 0.05  # relative spread of a step's seconds

    def cost(self, budget: Budget) -> float:
        return self.seconds(self.rows * budget.nodes)

    def emit(self, budget: Budget, rng: random.Random) -> float:
        """Tokens per row of a round."""
        total = 0
        for _ in range(self.rows):
            depth = 1
            while depth < budget.most_emitted and rng.random() < self.accept_rate:
                depth += 1
            total += depth
        return total / self.rows

    def mean_emitted(self, budget: Budget) -> float:
        return sum(self.accept_rate**depth for depth in range(budget.most_emitted))

    def rate(self, budget: Budget) -> float:
        """Tokens per second and row when no step is delayed."""
        return self.mean_emitted(budget) / self.cost(budget)


def dummy_costs(machine: Machine, ladder: tuple[Rung, ...]) -> tuple[RungCost, ...]:
    """What dummy runs of such a machine measure at start."""
    return tuple(
        RungCost(rows=rows, drafts=rung.drafts, seconds=replace(machine, rows=rows).cost(rung.tree))
        for rows in (1, 2, 4, 8, 16)
        for rung in (ladder[0], ladder[1], ladder[-1])
    )


@dataclass(slots=True)
class Adversary:
    """Delays the steps it wants to, at most 1% of any 2,000."""

    wants: Callable[[int, Budget, Budget], bool]  # step, its budget, that of the step before
    delayed: list[int]
    most: int = MOST_DELAYED

    def delays(self, step: int, budget: Budget, before: Budget) -> bool:
        recent = self.delayed[-self.most :]
        is_spent = len(recent) == self.most and recent[0] > step - SPAN
        if is_spent or not self.wants(step, budget, before):
            return False
        self.delayed.append(step)
        return True


def adversaries(budgets: tuple[Budget, ...], rng: random.Random) -> dict[str, Adversary]:
    """One of each strategy; times are drawn from `rng`."""
    start, run = rng.randrange(400), rng.choice([3, 5, 10, 20])
    period = SPAN * run // MOST_DELAYED
    early = rng.randrange(40)
    wants: dict[str, Callable[[int, Budget, Budget], bool]] = {
        "none": lambda step, budget, before: False,
        "random": lambda step, budget, before: rng.random() < 0.01,
        "bursts": lambda step, budget, before: (step - start) % period < run,
        "early burst": lambda step, budget, before: step >= early,
        "any trial": lambda step, budget, before: budget != before,
        "plain's trials": lambda step, budget, before: (
            budget == PLAIN and (before != PLAIN or step < 60)
        ),
    }
    for rung, target in enumerate(budgets):
        wants[f"rung {rung}"] = lambda step, budget, before, target=target: budget == target
        wants[f"rung {rung}, half of the time"] = lambda step, budget, before, target=target: (
            budget == target and rng.random() < 0.5
        )
    return {name: Adversary(want, []) for name, want in wants.items()}


@dataclass(frozen=True, slots=True)
class Run:
    """Expected tokens per row and seconds of every step, and which steps were delayed."""

    tokens: list[float]
    seconds: list[float]
    is_delayed: list[bool]
    budgets: list[Budget]

    def least_ratio(self, rate: float, every: int = 100) -> float:
        """The least throughput of any 2,000 steps, over that of a fixed budget of rate `rate`
        with as many delayed steps.
        """
        ratios = []
        for first in range(0, len(self.tokens) - SPAN + 1, every):
            part = slice(first, first + SPAN)
            fixed_s = 1 + (DELAY - 1) * sum(self.is_delayed[part]) / SPAN
            ratios.append(sum(self.tokens[part]) / sum(self.seconds[part]) * fixed_s / rate)
        return min(ratios)


def simulate(
    adaptation: Adaptation,
    machine: Machine,
    adversary: Adversary,
    rng: random.Random,
    *,
    num_steps: int,
    num_in_flight: int,
) -> Run:
    """Steps whose results arrive while `num_in_flight` later ones are already scheduled."""
    run = Run([], [], [], [])
    before, emitted = PLAIN, []
    for step in range(num_steps + num_in_flight):
        if step < num_steps:
            budget = adaptation.choose(step, num_rows=machine.rows, num_prompt=0).tree
            num_query = machine.rows * budget.nodes
            adaptation.settle(
                step, StepLoad(num_rows=machine.rows, num_query=num_query, num_prompt=0)
            )
            is_delayed = adversary.delays(step, budget, before)
            noise = max(0.5, rng.gauss(1.0, machine.noise))
            run.seconds.append(machine.cost(budget) * noise * (DELAY if is_delayed else 1.0))
            run.tokens.append(machine.mean_emitted(budget))
            emitted.append(machine.emit(budget, rng))
            run.is_delayed.append(is_delayed)
            run.budgets.append(budget)
            before = budget
        done = step - num_in_flight
        if done >= 0:
            adaptation.note(done, seconds=run.seconds[done], emitted_per_row=emitted[done])
    return run
