"""Models with row state continue a cached text exactly as if they had computed it."""

import random
from dataclasses import replace

import pytest
from support.engines import engine_of, make_submission
from support.role_traces import traces
from support.row_matrix import sampling_of, shape_of
from support.row_models import FAMILIES, row_model

from outrider.engine.engine import Engine

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


def conversation(engine, sampling, *, seed):
    """Tokens, rounds and cached tokens of the turns of a chat, each alone in its engine."""
    rng = random.Random(seed)
    own = replace(sampling_of(sampling), trace=True)
    text, found = [rng.randint(3, 60) for _ in range(rng.randint(5, 20))], []
    for turn in range(3):
        asked = make_submission(f"r{turn}", text, own, max_tokens=rng.randint(30, 40))
        tokens, rounds, cached, _ = traces(engine, [asked])[asked.request_id]
        found.append((tokens, rounds, cached))
        text = [*text, *tokens, *[rng.randint(3, 60) for _ in range(rng.randint(1, 8))]]
    return found


@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize(("family", "drafter"), CASES)
@pytest.mark.fast_cases(2)
def test_a_cached_turn_has_the_tokens_and_drafts_of_a_cold_one(family, drafter, depth, sampling):
    target, drafts = row_model(family)
    draft, seed = drafts[drafter], CASES.index((family, drafter))
    shape = shape_of(draft, chunk=13 + seed, depth=depth, max_context=192)
    cold = conversation(
        engine_of(target, replace(shape, prefix_cache=False), draft), sampling, seed=seed
    )
    engine = saving(engine_of(target, shape, draft))
    warm = conversation(engine, sampling, seed=seed)
    again = conversation(engine, sampling, seed=seed)
    assert [turn[:2] for turn in warm] == [turn[:2] for turn in cold]
    assert [turn[:2] for turn in again] == [turn[:2] for turn in cold]
    assert not any(turn[2] for turn in cold)
    assert warm[0][2] == 0
    assert warm[1][2] >= 32  # the first prompt has at most 20 tokens
