"""Policies that fix or vary how much steps draft, and the answers under them."""

import random

from outrider.engine.draft_policy import WholeBudget
from outrider.wire.draft_budget import Budget, Rung
from support.engines import make_submission, run_all
from support.matrix import (
    MAX_TOKENS,
    PROMPTS,
    TREES,
    Case,
    Models,
    engine_of_case,
    right_answer,
    sampling_of,
)


class FixedRung(WholeBudget):
    """The same rung in every step."""

    def __init__(self, rung: Rung) -> None:
        self._rung = rung

    def choose(self, step: int, *, num_rows: int, num_prompt: int) -> Rung:
        del step, num_rows, num_prompt
        return self._rung


class RandomRungs(WholeBudget):
    """Another number of drafts in every step, less than the rows would like to have."""

    def __init__(self, tree: Budget, seed: int) -> None:
        self._tree, self._rng = tree, random.Random(seed)

    def choose(self, step: int, *, num_rows: int, num_prompt: int) -> Rung:
        del step, num_rows, num_prompt
        return Rung(tree=self._tree, drafts=self._rng.randint(0, self._tree.nodes - 1))


def shared_answers(models: Models, case: Case, seed: int) -> list[list[int]]:
    """The answers of a case whose steps have random numbers of drafts."""
    engine = engine_of_case(models, case)
    engine._scheduler._policy = RandomRungs(TREES[case.tree], seed)
    submissions = [
        make_submission(
            f"r{i}",
            prompt,
            sampling_of(case.sampling, i),
            max_tokens=MAX_TOKENS,
            budget=case.budgets[i],
        )
        for i, prompt in enumerate(PROMPTS)
    ]
    outputs = run_all(engine, submissions)
    return [outputs[f"r{i}"].tokens for i in range(len(PROMPTS))]


def right_answers(models: Models, case: Case) -> list[list[int]]:
    return [right_answer(models.theirs, case.sampling, i).tokens for i in range(len(PROMPTS))]
