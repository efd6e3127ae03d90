"""A traced round tells what was drafted and how every token came, and changes none of them."""

import pytest
from support.engines import Shape, engine_of
from support.rounds import (
    MAX_TOKENS,
    TEXTS,
    assert_accounted_for,
    assert_tells_how,
    drafts_of,
    listen,
)

from outrider.wire.step_result import RoundTrace


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("executor", ["eager", "tape"])
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("draft", ["none", "chain", "tree", "model"])
def test_every_token_of_a_traced_output_is_accounted_for(models, draft, depth, executor):
    shape = Shape(executor=executor, depth=depth, pad=3, step_tokens=60)
    engine = engine_of(models.target, shape, drafts_of(models)[draft])
    assert_accounted_for(engine, drafts=draft != "none")


def test_only_requests_that_want_rounds_get_them(models):
    engine = engine_of(models.target, Shape(), drafts_of(models)["tree"])
    outputs = listen(engine, traced=(1,))
    assert [bool(rounds) for _, rounds in outputs.values()] == [False, True, False, False]
    tokens, rounds = outputs["r1"]
    assert_tells_how(rounds, TEXTS[1], tokens)


def test_a_round_that_is_cut_by_the_end_of_the_answer_ends_on_a_kept_draft(models):
    engine = engine_of(models.target, Shape(), drafts_of(models)["chain"])
    cut = []
    for max_tokens in range(2, MAX_TOKENS):
        outputs = listen(engine, traced=range(len(TEXTS)), sampling="greedy", max_tokens=max_tokens)
        for prompt, (tokens, rounds) in zip(TEXTS, outputs.values(), strict=True):
            assert len(tokens) == max_tokens
            assert_tells_how(rounds, prompt, tokens)
            cut += [each for each in rounds if not each.has_bonus]
    assert cut


def test_cutting_a_round_cuts_its_path_with_its_tokens():
    whole = RoundTrace(
        tokens=(1, 2, 3, 9), parents=(-1, 0, 1, 0), path=(0, 1, 2), emitted=(2, 3, 4)
    )
    assert whole.num_accepted == 2
    assert whole.has_bonus
    assert whole.cut(3) == whole
    assert (whole.cut(2).path, whole.cut(2).emitted) == ((0, 1, 2), (2, 3))
    assert not whole.cut(2).has_bonus
    assert (whole.cut(1).path, whole.cut(1).emitted) == ((0, 1), (2,))
