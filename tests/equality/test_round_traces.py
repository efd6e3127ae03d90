"""A traced round tells what was drafted and how every token came, and changes none of them."""

from dataclasses import replace

import pytest
from support.engines import NO_DRAFT, Shape, ask, engine_of
from support.matrix import LAWS, PROMPTS, TREES

from outrider.runtime.drafts import NgramDraft
from outrider.wire.result import RoundTrace
from outrider.wire.speculation import Budget

TEXTS = [[5, 6, 7, 8] * 5, [5, 6, 7, 8] * 3 + [5, 6, 30, 5, 6], *PROMPTS[2:]]
MAX_TOKENS = 12
FEW_WORDS = tuple((token, 30.0) for token in (5, 6, 7))  # so that it repeats itself now and then


def drafts_of(models):
    return {
        "none": NO_DRAFT,
        "chain": NgramDraft(budget=Budget(steps=5, topk=1, nodes=6), min_match=2, max_match=4),
        "tree": NgramDraft(budget=Budget(steps=4, topk=3, nodes=9), min_match=1, max_match=3),
        "model": models.draft("relative", TREES["tree"]),
    }


def listen(engine, *, traced, law="sampled", **limits):
    """The tokens and the rounds of every prompt; only those numbered in `traced` ask for rounds."""
    law = replace(LAWS[law], bias=FEW_WORDS)
    for i, text in enumerate(TEXTS):
        asked = replace(law, trace=i in traced)
        engine.add(ask(f"r{i}", text, asked, **{"max_tokens": MAX_TOKENS, **limits}))
    heard = {f"r{i}": ([], []) for i in range(len(TEXTS))}
    while engine.has_work:
        for update in engine.step():
            tokens, rounds = heard[update.request_id]
            tokens += update.tokens
            rounds += update.rounds
    return heard


def assert_is_a_tree(each: RoundTrace):
    assert len(each.tokens) == len(each.parents)
    assert min(each.tokens) >= 0
    assert each.parents[0] == -1
    assert all(0 <= parent < node for node, parent in enumerate(each.parents) if node)


def assert_tells_how(rounds: list[RoundTrace], prompt: list[int], tokens: list[int]):
    """The rounds are a partition of the output; each path is a branch whose tokens were emitted."""
    assert [token for each in rounds for token in each.emitted] == tokens
    text = [*prompt]
    for each in rounds:
        assert_is_a_tree(each)
        assert each.tokens[0] == text[-1]  # node 0 was there before
        assert each.path[0] == 0
        assert [each.parents[node] for node in each.path[1:]] == list(each.path[:-1])
        kept = tuple(each.tokens[node] for node in each.path[1:])
        assert each.emitted[: each.kept] == kept
        assert each.has_bonus or each is rounds[-1]
        text += each.emitted


@pytest.mark.parametrize("executor", ["eager", "tape"])
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("draft", ["none", "chain", "tree", "model"])
def test_every_token_of_a_traced_output_is_accounted_for(models, draft, depth, executor):
    shape = Shape(executor=executor, depth=depth, pad=3, step_tokens=60)
    engine = engine_of(models.target, shape, drafts_of(models)[draft])
    plain = listen(engine, traced=())
    traced = listen(engine, traced=range(len(TEXTS)))
    assert {name: tokens for name, (tokens, _) in traced.items()} == {
        name: tokens for name, (tokens, _) in plain.items()
    }
    for prompt, (tokens, rounds) in zip(TEXTS, traced.values(), strict=True):
        assert_tells_how(rounds, prompt, tokens)
    everything = [each for _, rounds in traced.values() for each in rounds]
    assert any(each.kept for each in everything) == (draft != "none")
    assert (max(len(each.tokens) for each in everything) > 1) == (draft != "none")


def test_only_those_who_ask_get_rounds(models):
    engine = engine_of(models.target, Shape(), drafts_of(models)["tree"])
    heard = listen(engine, traced=(1,))
    assert [bool(rounds) for _, rounds in heard.values()] == [False, True, False, False]
    tokens, rounds = heard["r1"]
    assert_tells_how(rounds, TEXTS[1], tokens)


def test_a_round_that_is_cut_by_the_end_of_the_answer_ends_on_a_kept_draft(models):
    engine = engine_of(models.target, Shape(), drafts_of(models)["chain"])
    cut = []
    for max_tokens in range(2, MAX_TOKENS):
        heard = listen(engine, traced=range(len(TEXTS)), law="greedy", max_tokens=max_tokens)
        for prompt, (tokens, rounds) in zip(TEXTS, heard.values(), strict=True):
            assert len(tokens) == max_tokens
            assert_tells_how(rounds, prompt, tokens)
            cut += [each for each in rounds if not each.has_bonus]
    assert cut


def test_cutting_a_round_cuts_its_path_with_its_tokens():
    whole = RoundTrace(
        tokens=(1, 2, 3, 9), parents=(-1, 0, 1, 0), path=(0, 1, 2), emitted=(2, 3, 4)
    )
    assert whole.kept == 2
    assert whole.has_bonus
    assert whole.cut(3) == whole
    assert (whole.cut(2).path, whole.cut(2).emitted) == ((0, 1, 2), (2, 3))
    assert not whole.cut(2).has_bonus
    assert (whole.cut(1).path, whole.cut(1).emitted) == ((0, 1), (2,))
