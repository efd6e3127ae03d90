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

_USUAL = ("none", "ngram", "modules")
_OTHERS = {"v4": (*_USUAL, "head"), "qwen3-next-2": ("modules",), "v4-dspark": ("modules",)}
CASES = [(family, drafter) for family in FAMILIES for drafter in _OTHERS.get(family, _USUAL)]


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


def has_same_bits(turns, others):
    """Whether tokens, drafts and log-probabilities are equal to the last bit, as on a CPU."""
    return is_same(turns, others) and all(
        ours.logprobs == theirs.logprobs for ours, theirs in zip(turns, others, strict=True)
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


def random_texts(engine, rng, *, num):
    """Requests one after the other, each with a prompt that begins like an earlier text or not.

    Yields each submission with its answer, so that the next text can go on there.
    """
    own, texts = replace(sampling_of("sampled"), trace=True), []
    for number in range(num):
        begun = (
            rng.choice(texts[-3:])[: rng.randint(17, 52)] if rng.random() < 0.8 and texts else []
        )
        prompt = [*begun, *(rng.randint(3, 60) for _ in range(rng.randint(1, 14)))]
        asked = make_submission(f"r{number}", prompt, own, max_tokens=rng.randint(1, 14))
        tokens, rounds, cached, logprobs = traces(engine, [asked])[asked.request_id]
        texts.append([*prompt, *tokens])
        yield asked, Turn(tokens, rounds, cached, [each.chosen for each in logprobs])
