"""Chats with models that have row state: each turn continues the text of the turn before."""

import random
from dataclasses import replace
from typing import NamedTuple

import pytest

from outrider.engine.engine import Engine
from outrider.wire.step_result import RoundTrace
from support.engines import engine_of, make_submission
from support.role_traces import traces
from support.row_matrix import sampling_of, shape_of
from support.row_models import FAMILIES, row_model

CASES = [
    (family, drafter)
    for family in FAMILIES
    for drafter in ("none", "ngram", "modules")
    if family != "qwen3-next-2" or drafter == "modules"
]


def saving(engine):
    """The engine with a snapshot at every page border of an answer."""
    facts, page = engine.facts, engine.facts.host.page_size
    eager = replace(facts, snapshots=replace(facts.snapshots, every=page))
    return Engine(engine._runner, eager, engine._runner.grammars)


class Turn(NamedTuple):
    """The answer to one prompt."""

    tokens: list[int]
    rounds: list[RoundTrace]
    cached: int
    logprobs: list[float]


def is_same(turns, others):
    """Whether tokens and drafts are equal, and log-probabilities nearly so."""
    return all(
        ours[:2] == theirs[:2] and ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-3)
        for ours, theirs in zip(turns, others, strict=True)
    )


def conversation(engine, sampling, *, seed):
    """The turns of a chat, each alone in its engine."""
    rng = random.Random(seed)
    own = replace(sampling_of(sampling), trace=True)
    text, found = [rng.randint(3, 60) for _ in range(rng.randint(12, 15))], []
    for turn in range(2):
        asked = make_submission(f"r{turn}", text, own, max_tokens=rng.randint(22, 28))
        tokens, rounds, cached, logprobs = traces(engine, [asked])[asked.request_id]
        found.append(Turn(tokens, rounds, cached, [each.chosen for each in logprobs]))
        text = [*text, *tokens, *[rng.randint(3, 60) for _ in range(rng.randint(1, 8))]]
    return found


def cold_and_warm(family, drafter, *, sampling="greedy", **how):
    """The same chat in an engine without a cache; in one with a cache; and there again."""
    target, drafts = row_model(family, how.get("device", "cpu"))
    draft, seed = drafts[drafter], CASES.index((family, drafter))
    shape = shape_of(draft, chunk=13 + seed, max_context=96, **how)
    cold = engine_of(target, replace(shape, prefix_cache=False), draft)
    warm = saving(engine_of(target, shape, draft))
    return [conversation(each, sampling, seed=seed) for each in (cold, warm, warm)]
