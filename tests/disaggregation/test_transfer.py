"""Prompts computed by one engine and decoded by another: tokens, drafts and pages."""

from dataclasses import replace

import pytest
from support.engines import Shape, engine_of, run_all
from support.model_set import make_models
from support.role_traces import (
    DRAFTERS,
    NUM_TARGET_LAYERS,
    draft_of,
    pair_traces,
    submissions,
    traces,
)
from support.roles import pair_of
from support.tiny import VOCAB
from support.tiny_vocabulary import END, SPECS, TINY

from outrider.runtime.draft_kinds import NoDraft
from outrider.structured.grammar_cache import GrammarCache
from outrider.wire.grammar_spec import Grammar


def assert_same_as_one_engine(models, name, sampling):
    draft, asked = draft_of(models, name), submissions(sampling)
    alone = traces(engine_of(models.target, Shape(prefix_cache=False), draft), asked)
    with pair_of(models.target, draft) as pair:
        together = pair_traces(pair, asked)
        pair.assert_no_leak()
    for each in asked:
        assert together[each.request_id][:2] == alone[each.request_id][:2]
        assert together[each.request_id][3] == alone[each.request_id][3], "log-probabilities"
        num_covered = max(len(each.prompt) - 1 - draft.facts.lookahead, 0)
        assert together[each.request_id][2] == num_covered // 4 * 4, "the KV did not come"


@pytest.mark.parametrize("sampling", ["greedy", "sampled", "warped"])
@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.fast_cases(3)
def test_tokens_and_rounds_are_those_of_one_engine(models, name, sampling):
    assert_same_as_one_engine(models, name, sampling)


@pytest.fixture(scope="module")
def latent_models(tmp_path_factory):
    return make_models(tmp_path_factory.mktemp("latents"), "cpu", "deepseek-v3")


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAFTERS)
def test_tokens_and_rounds_of_a_target_with_latents(latent_models, name):
    assert_same_as_one_engine(latent_models, name, "sampled")


@pytest.fixture(scope="module")
def grammar_cache():
    pytest.importorskip("xgrammar")
    grammar_cache = GrammarCache(lambda: TINY, vocab_size=VOCAB)
    yield grammar_cache
    grammar_cache.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAFTERS)
def test_tokens_and_rounds_under_a_grammar_are_those_of_one_engine(models, grammar_cache, name):
    draft, grammar = draft_of(models, name), Grammar(spec=SPECS["regex"], ends=(END,))
    asked = [
        replace(each, sampling=replace(each.sampling, grammar=grammar))
        for each in submissions("sampled")
    ]
    shape = Shape(prefix_cache=False)
    alone = traces(engine_of(models.target, shape, draft, grammar_cache), asked)
    with pair_of(models.target, draft, grammars=grammar_cache) as pair:
        together = pair_traces(pair, asked)
        pair.assert_no_leak()
    for each in asked:
        assert together[each.request_id][:2] == alone[each.request_id][:2]
        assert together[each.request_id][3] == alone[each.request_id][3], "log-probabilities"
    assert together["r2"][2] > 20, "the KV did not come"


@pytest.mark.parametrize(
    "name", ["relative", "eagle3", "modules", "dflash", "dspark", "peagle", "pard", "eagle3-mla"]
)
def test_lost_draft_pages_change_the_drafts_and_no_token(models, name):
    draft, asked = draft_of(models, name), submissions()[2:]
    alone = traces(engine_of(models.target, Shape(prefix_cache=False), draft), asked)
    with pair_of(models.target, draft) as pair:
        keep = pair.decode.pages.write

        def write(part, pages, values):
            keep(part, pages, values if part < NUM_TARGET_LAYERS else values * 0)

        pair.decode.pages.write = write
        tokens, rounds, *_ = pair_traces(pair, asked)["r2"]
    assert tokens == alone["r2"][0]
    assert rounds != alone["r2"][1]


def test_a_lapsed_lease_is_never_published(models):
    asked = submissions()[2:]
    alone = traces(engine_of(models.target, Shape(prefix_cache=False)), asked)
    with pair_of(models.target, NoDraft()) as pair:
        keep = pair.decode.pages.write

        def write(part, pages, values):
            """The lease ends in the middle of the read, and the pages belong to others."""
            if part == 1:
                pair.board.end("r2")
                values = values * 0
            keep(part, pages, values)

        pair.decode.pages.write = write
        tokens, _, cached, _ = pair_traces(pair, asked)["r2"]
        assert cached == 0
        pair.prefill.engine._pending.role._close("r2")
        pair.assert_no_leak()
    assert tokens == alone["r2"][0]


def test_requests_of_one_room_share_its_transfer(models):
    (one,) = submissions()[2:]
    both = [one, replace(one, request_id="again")]
    with pair_of(models.target, NoDraft()) as pair:
        pair.offer(one, "room")
        answers = run_all(pair.decode.engine, [pair.fetched(each, "room") for each in both])
        assert answers["r2"].tokens == answers["again"].tokens
        assert pair.decode.engine.stats.transfers.total_done == 1
        assert answers["again"].last.progress.cached == 28
        pair.assert_no_leak()


MESSAGES = 1024  # bytes about a small prompt: the room, page numbers, tags


@pytest.mark.parametrize("name", ["none", "relative", "eagle3"])
def test_the_bytes_that_move_are_those_of_the_pages(models, name):
    draft, (one,) = draft_of(models, name), submissions()[2:]
    with pair_of(models.target, draft) as pair:
        _, _, cached, _ = pair_traces(pair, [one])["r2"]
        floor = cached // 4 * pair.decode.pages.page_bytes
        assert floor < pair.decode.engine.stats.transfers.total_bytes < floor + MESSAGES
        again = replace(one, request_id="again")  # its pages are cached: none is read
        pair_traces(pair, [again])
        assert pair.decode.engine.stats.transfers.total_bytes < floor + MESSAGES


def test_only_the_pages_that_are_not_cached_travel(models):
    (one,) = submissions()[2:]
    with pair_of(models.target, NoDraft()) as pair:
        run_all(pair.decode.engine, [replace(one, prompt=one.prompt[:18])])
        moved = []
        keep = pair.decode.pages.write
        pair.decode.pages.write = lambda part, pages, values: (
            moved.append(len(pages)),
            keep(part, pages, values),
        )
        tokens, _, cached, _ = pair_traces(pair, [one])["r2"]
        assert set(moved) == {3}  # 28 tokens in pages of 4, of which 16 are cached
        floor = 3 * pair.decode.pages.page_bytes
        assert floor < pair.decode.engine.stats.transfers.total_bytes < floor + MESSAGES
        assert cached == 28
        pair.assert_no_leak()
    assert tokens == traces(engine_of(models.target, Shape()), [one])["r2"][0]
