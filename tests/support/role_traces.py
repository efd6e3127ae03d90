"""Requests whose tokens and rounds are compared between one engine and two."""

from dataclasses import replace

import pytest

from outrider.config.role_checks import nixl_package
from outrider.runtime.draft_kinds import MergedDraft, SuffixDraft, merged_budget
from support import matrix
from support.engines import engine_of, make_submission
from support.matrix import TREES, sampling_of
from support.roles import pair_of

PROMPTS = [
    [(7 * i + i // 3 + 5 * n) % 60 + 3 for i in range(length)]
    for n, length in enumerate((1, 5, 30))
]
NUM_TARGET_LAYERS = 3  # their pages come first
MESSAGES = 4096  # bytes about a small prompt: facts, rooms, page numbers, tags
HEAD_AND_TEXTS = "eagle3 with suffix"
DRAFTERS = [*matrix.DRAFTERS, *matrix.LOOKUPS, *matrix.CHAINS_ONLY, HEAD_AND_TEXTS]


def draft_of(models, name):
    tree = TREES["chain" if name in matrix.CHAINS_ONLY else "tree"]
    if name != HEAD_AND_TEXTS:
        return models.draft(name, tree)
    lookup = SuffixDraft(budget=merged_budget(tree), min_match=1, max_match=4)
    return MergedDraft(model=models.draft("eagle3", tree), lookup=lookup)


def submissions(sampling="greedy", prompts=PROMPTS):
    return [
        make_submission(
            f"r{i}", prompt, replace(sampling_of(sampling, i), trace=True), max_tokens=8
        )
        for i, prompt in enumerate(prompts)
    ]


def pair_traces(pair, asked):
    for each in asked:
        pair.offer(each, each.request_id)
    return traces(pair.decode.engine, [pair.fetched(each, each.request_id) for each in asked])


def transport_of(backend):
    """What moves pages between the engines of a pair, by the name of its backend."""
    if backend == "tcp":
        return {}
    if not nixl_package():
        pytest.skip("pip install 'outrider[disagg]'")
    from outrider.disaggregation.nixl_pages import NixlSink, NixlSource

    return {"make_source": lambda pages, _: NixlSource(pages), "make_sink": NixlSink}


def assert_same_rounds(target, draft, asked, *, shape, backend):
    """Two engines have the tokens and rounds of one, and read the bytes of pages and rows alone."""
    alone = traces(engine_of(target, replace(shape, prefix_cache=False), draft), asked)
    with pair_of(target, draft, shape=shape, **transport_of(backend)) as pair:
        together = pair_traces(pair, asked)
        counts, decode = pair.decode.engine.stats.transfers, pair.decode
        pair.assert_no_leak()
    assert counts.total_failed == 0
    for each in asked:
        assert together[each.request_id][:2] == alone[each.request_id][:2]
    num_cached = [each[2] for each in together.values()]
    assert max(num_cached) >= len(asked[-1].prompt) // 2, "the KV did not come"
    num_pages = sum(-(-each // shape.page_size) for each in num_cached)
    floor = num_pages * decode.pages.page_bytes
    if decode.engine.facts.snapshots.row_bytes:  # else the drafter's rows follow from the tail
        floor += counts.total_done * decode.runner.row_images.row_bytes
    assert 0 < counts.total_bytes - floor < MESSAGES * counts.total_done


def traces(engine, submissions):
    """Tokens, rounds, number of cached tokens and log-probabilities of each request.

    Each runs alone, so that its rounds do not depend on the batch.
    """
    found = {}
    for submission in submissions:
        engine.add(submission)
        tokens, rounds, cached, logprobs = [], [], 0, []
        while engine.has_work:
            for update in engine.step():
                tokens += update.tokens
                rounds += update.rounds
                logprobs += update.logprobs
                cached = update.progress.cached
        found[submission.request_id] = (tokens, rounds, cached, logprobs)
    return found
