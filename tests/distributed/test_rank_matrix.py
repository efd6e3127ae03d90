"""On several ranks, too, the tokens are those of the reference decoder, however a step is run.

Ranks are threads that run in turn; after every step the outputs of all ranks are compared.
`pytest -m matrix tests/distributed/test_rank_matrix.py` runs 20 random cases of every family.
"""

import random
from dataclasses import replace

import pytest
from support.engines import Shape, run_all
from support.matrix import SAMPLINGS, TREES
from support.rank_matrix import GRAMMAR, RankCase, random_case, ranked_engine, some_cases
from support.rank_matrix import submission_of as submit
from support.rank_models import PAGED, ROW_STATE
from support.row_harness import PAGE_SIZE
from support.thread_ranks import ThreadRank

from tests.equality.test_unknown_lengths import Untouchable, result_may_be_read

CASES_OF_A_FAMILY = 20
ROWS = Shape(page_size=PAGE_SIZE)
BASE = RankCase(
    family="llama",
    size=2,
    shape=Shape(depth=1),
    sampling="sampled",
    drafter="none",
    tree="tree",
    is_prefix_hit=False,
    is_adaptive=False,
)


def skip_without_grammars(case):
    if case.sampling == GRAMMAR:
        pytest.importorskip("xgrammar")


@pytest.mark.fast_cases(6)
@pytest.mark.parametrize(
    "case",
    [
        replace(BASE, drafter="eagle3"),
        replace(BASE, drafter="dspark"),
        replace(BASE, size=4, sampling="warped", drafter="ngram"),
        replace(BASE, size=4, drafter="relative", has_logprobs=False),
        replace(BASE, family="deepseek-v3", size=3, sampling="greedy", drafter="mtp"),
        replace(BASE, family="qwen3.5", shape=ROWS, drafter="mtp", tree="chain"),
        replace(BASE, family="deepseek-v4", shape=ROWS, drafter="ngram", tree="chain"),
    ],
    ids=str,
)
def test_two_ranks_and_more_give_the_reference_tokens(rank_matrix, case):
    assert not rank_matrix.mismatches(case)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "drafter"), [("deepseek-v4", "eagle3"), ("deepseek-v4-dspark", "mtp")]
)
def test_drafters_on_the_mean_of_streams_give_the_reference_tokens(rank_matrix, family, drafter):
    case = replace(BASE, family=family, shape=ROWS, drafter=drafter, tree="chain")
    assert not rank_matrix.mismatches(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", some_cases(18, seed=0), ids=str)
def test_every_way_of_running_gives_the_reference_tokens(rank_matrix, case):
    skip_without_grammars(case)
    assert not rank_matrix.mismatches(case)


WIDE = Shape(depth=1, kv_tokens=2048, prefix_cache=False)
NARROW = Shape(depth=1, page_size=4, step_tokens=33)  # chunks of one to nine tokens beside trees
SCARCE = replace(NARROW, kv_tokens=64, max_context=48)  # rows give way to others
BITS = [
    replace(BASE, drafter="relative", shape=NARROW, is_prefix_hit=True),
    replace(BASE, drafter="eagle3", shape=SCARCE, sampling="warped"),
    replace(BASE, size=4, drafter="ngram", shape=NARROW, tree="wide", is_adaptive=True),
    replace(BASE, family="qwen3-moe", drafter="relative", shape=NARROW, is_prefix_hit=True),
    replace(BASE, family="deepseek-v3", drafter="mtp", shape=NARROW, is_prefix_hit=True),
    replace(BASE, family="qwen3.5", drafter="mtp", tree="chain", shape=ROWS, is_prefix_hit=True),
    replace(BASE, family="deepseek-v4", drafter="ngram", tree="chain", shape=ROWS),
]


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("case", BITS, ids=str)
def test_on_the_same_ranks_drafts_batches_chunks_and_hits_change_no_bit(rank_matrix, case):
    """Against plain decoding, one request after the other, each prompt in one chunk."""
    shape = replace(WIDE, page_size=case.shape.page_size)
    engine = rank_matrix.engine(replace(case, drafter="none", shape=shape, is_adaptive=False))
    alone = {}
    for i in range(len(case.prompts)):
        alone |= run_all(engine, [submit(case, i)])
    outputs = rank_matrix.run(case)
    assert {name: (each.tokens, each.logprobs) for name, each in outputs.items()} == {
        name: (each.tokens, each.logprobs) for name, each in alone.items()
    }
    assert all(len(each.logprobs) == len(each.tokens) > 0 for each in alone.values())
    if case.shape == SCARCE:
        assert sum(each.last.progress.preemptions for each in outputs.values())


@pytest.mark.matrix
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("family", [*PAGED, *ROW_STATE])
def test_many_ways_of_running_a_family(rank_matrix, family):
    rng = random.Random(f"many {family}")
    cases = [random_case(rng, family) for _ in range(CASES_OF_A_FAMILY)]
    found = {}
    for case in cases:
        skip_without_grammars(case)
        found[str(case)] = rank_matrix.mismatches(case)
    assert not {case: wrong for case, wrong in found.items() if wrong}


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("drafter", ["none", "eagle3", "relative"])
def test_no_rank_reads_a_length_on_the_host(rank_matrix, monkeypatch, drafter, sampling):
    result_may_be_read(monkeypatch)
    case = replace(BASE, drafter=drafter, sampling=sampling)
    engine = rank_matrix.engine(case)
    for runner in engine._runner.runners:
        rows = runner._program.state.rows
        rows.lengths = rows.lengths.as_subclass(Untouchable)
    outputs = run_all(engine, [submit(case, i) for i in range(len(case.prompts))])
    for i in range(len(case.prompts)):
        assert outputs[f"r{i}"].tokens == rank_matrix.right_answer(case, i).tokens


def are_answers_right_with_different_heads(rank_matrix):
    """A head that is whole on every rank may differ there in bits; here it differs completely."""
    case = replace(BASE, drafter="eagle3")
    models = rank_matrix.models(case.family, case.size)
    first, same = models.drafts("eagle3", TREES["tree"])
    other = replace(same, model=_Disturbed(same.model))
    engine = ranked_engine(models, case.shape, [first, other])
    outputs = run_all(engine, [submit(case, i) for i in range(len(case.prompts))])
    return all(
        outputs[f"r{i}"].tokens == rank_matrix.right_answer(case, i).tokens
        for i in range(len(case.prompts))
    )


def test_ranks_with_different_heads_verify_the_trees_of_rank_0(rank_matrix):
    assert are_answers_right_with_different_heads(rank_matrix)


def test_ranks_that_verify_their_own_trees_are_noticed(rank_matrix, monkeypatch):
    monkeypatch.setattr(ThreadRank, "copy_first_", lambda self, x: None)
    assert not are_answers_right_with_different_heads(rank_matrix)


def test_rows_without_filters_and_logprobs_gather_no_logits(rank_matrix, monkeypatch):
    def refuse(self, x):
        raise AssertionError("logits were gathered")

    monkeypatch.setattr(ThreadRank, "stack", refuse)
    case = replace(BASE, drafter="ngram", has_logprobs=False)
    assert not rank_matrix.mismatches(case)
    assert rank_matrix.mismatches(replace(case, has_logprobs=True))  # so the patch refuses


class _Disturbed:
    """A draft model that prefers other tokens."""

    def __init__(self, model):
        self._model = model
        self.facts, self.target_ids = model.facts, model.target_ids
        self.project, self.forward, self.catch_up = model.project, model.forward, model.catch_up

    def logits(self, state):
        return -self._model.logits(state)
