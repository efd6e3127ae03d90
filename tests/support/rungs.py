"""Policies that fix or vary how much steps draft, and the answers under them."""

import random
from functools import cache

from outrider.engine.draft_policy import WholeBudget
from outrider.models.decoder import Decoder
from outrider.wire.draft_budget import Budget, Rung
from support.engines import CollectedOutput, Shape, engine_of, make_submission, run_all
from support.matrix import (
    MAX_TOKENS,
    PROMPTS,
    TREES,
    Case,
    Models,
    answer_case,
    engine_of_case,
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


def shared_outputs(models: Models, case: Case, seed: int) -> dict[str, CollectedOutput]:
    """The outputs of a case whose steps have random numbers of drafts."""
    engine = engine_of_case(models, case)
    engine._scheduler._policy = RandomRungs(TREES[case.tree], seed)
    return answer_case(engine, case)


@cache
def plain_outputs(target: Decoder, sampling: str) -> dict[str, CollectedOutput]:
    """The outputs of plain decoding, of every prompt alone."""
    engine, outputs = engine_of(target, Shape(prefix_cache=False)), {}
    for i, prompt in enumerate(PROMPTS):
        own = sampling_of(sampling, i)
        outputs |= run_all(engine, [make_submission(f"r{i}", prompt, own, max_tokens=MAX_TOKENS)])
    return outputs


def different_bits(
    outputs: dict[str, CollectedOutput], right: dict[str, CollectedOutput]
) -> list[str]:
    """The requests whose tokens or log-probabilities are not the same to the last bit."""
    return [
        name
        for name, own in right.items()
        if (own.tokens, own.logprobs) != (outputs[name].tokens, outputs[name].logprobs)
    ]
