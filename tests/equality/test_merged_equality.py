"""A model and a lookup in one tree, in the real engine: what both gain, and never another token."""

from dataclasses import replace

import pytest
from support.engines import Shape, engine_of, make_submission, run_all
from support.matrix import SAMPLINGS, TREES
from support.reference import decode

from outrider.runtime.draft_kinds import MergedDraft, NgramDraft, SuffixDraft, merged_budget

PROMPT = [5, 6, 7, 8] * 4
MAX_TOKENS = 24


def merged_draft(models, *, tree="tree", model="stranger", kind=SuffixDraft, adaptive=False):
    budget = TREES[tree]
    drafted = replace(models.draft(model, budget), is_adaptive=adaptive)
    lookup = kind(budget=merged_budget(budget), min_match=1, max_match=4, is_adaptive=adaptive)
    return MergedDraft(model=drafted, lookup=lookup)


STRANGERS = ("stranger", "dflash", "dspark", "peagle", "pard", "medusa", "modules")
DRAFTS = [(model, tree) for model in STRANGERS for tree in ("chain", "tree")]
DRAFTS.remove(("modules", "tree"))


def rounds_of(engine, sampling="greedy") -> tuple[int, list[int]]:
    submission = make_submission("r", PROMPT, SAMPLINGS[sampling], max_tokens=MAX_TOKENS)
    output = run_all(engine, [submission])["r"]
    assert not engine.num_drafter_failures
    return output.last.progress.rounds, output.tokens


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize(("model", "tree"), DRAFTS)
@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
def test_a_known_answer_is_drafted_though_the_model_is_a_stranger(models, model, tree, sampling):
    draft = merged_draft(models, tree=tree, model=model)
    engine = engine_of(models.target, Shape(depth=1), draft)
    right = decode(models.theirs, PROMPT, SAMPLINGS[sampling], max_tokens=MAX_TOKENS).tokens
    first, tokens = rounds_of(engine, sampling)
    again, same = rounds_of(engine, sampling)
    assert tokens == same == right
    steps = merged_budget(TREES[tree]).steps
    assert again <= 3 + MAX_TOKENS // steps < first  # almost every round accepts a whole path


def test_a_twin_loses_nothing_by_a_lookup_that_finds_nothing_new(models):
    alone = engine_of(models.target, Shape(), models.draft("twin", TREES["chain"]))
    both = engine_of(models.target, Shape(), merged_draft(models, tree="chain", model="twin"))
    assert rounds_of(both)[0] <= rounds_of(alone)[0] + 1


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("model", STRANGERS)
def test_where_no_text_matches_the_chain_is_that_of_the_model(models, model):
    prompt, traced = [3, 1, 40, 15, 9], replace(SAMPLINGS["greedy"], trace=True)
    drafted = []
    for draft in (
        models.draft(model, TREES["chain"]),
        merged_draft(models, model=model, tree="chain"),
    ):
        submission = make_submission("r", prompt, traced, max_tokens=4)
        rounds = run_all(engine_of(models.target, Shape(), draft), [submission])["r"].rounds
        assert rounds[0].emitted[0] not in prompt  # after it the first drafts come
        drafted.append(rounds[1].tokens)
    assert drafted[0] == drafted[1]
    assert len(drafted[0]) > 1


def test_ngrams_join_a_model_without_reading_other_requests(models):
    draft = merged_draft(models, kind=NgramDraft)
    assert not draft.facts.needs_finished
    engine = engine_of(models.target, Shape(), draft)
    assert rounds_of(engine)[1] == rounds_of(engine)[1]


def test_rows_share_drafts_of_both_proposers(models):
    """Adaptive drafting with four rows runs ragged steps, whose nodes are those of all rows."""
    draft = merged_draft(models, adaptive=True)
    engine = engine_of(models.target, Shape(step_tokens=80), draft)
    for _ in range(3):
        submissions = [
            make_submission(f"r{i}", PROMPT[i:], SAMPLINGS["greedy"], max_tokens=MAX_TOKENS)
            for i in range(4)
        ]
        outputs = run_all(engine, submissions)
        for i in range(4):
            right = decode(
                models.theirs, PROMPT[i:], SAMPLINGS["greedy"], max_tokens=MAX_TOKENS
            ).tokens
            assert outputs[f"r{i}"].tokens == right
    assert not engine.num_drafter_failures
