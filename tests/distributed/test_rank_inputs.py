"""Embeddings in and hidden states out on several ranks: those of transformers, as on one."""

from dataclasses import replace

import pytest
from support import row_matrix
from support.embedded_prompts import embeds_mismatches
from support.engines import Shape
from support.rank_matrix import RankCase
from support.rank_models import ROW_STATE
from support.reported_states import state_differences
from support.row_harness import PAGE_SIZE

pytestmark = pytest.mark.usefixtures("poisoned_embeds")
BASE = RankCase(
    family="llama",
    size=2,
    shape=Shape(depth=1, step_tokens=40),
    sampling="greedy",
    drafter="none",
    tree="tree",
    is_prefix_hit=False,
    is_adaptive=False,
)
ROWS = Shape(page_size=PAGE_SIZE, executor="tape", step_tokens=40)
CASES = [
    replace(BASE, drafter="eagle3", shape=replace(BASE.shape, executor="tape", pad=4)),
    replace(BASE, size=4, drafter="relative"),
    replace(BASE, family="deepseek-v3", size=3, drafter="ngram"),
    replace(BASE, family="qwen3.5", drafter="mtp", tree="chain", shape=ROWS),
]


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_any_embeddings_give_the_tokens_of_transformers(rank_matrix, case):
    theirs, engine = rank_matrix.family(case.family).theirs, rank_matrix.engine(case)
    assert embeds_mismatches(theirs, engine, page_size=case.shape.page_size) == []


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_hidden_states_are_those_of_transformers(rank_matrix, case):
    theirs, engine = rank_matrix.family(case.family).theirs, rank_matrix.engine(case)
    prompts = [row_matrix.PROMPTS] if case.family in ROW_STATE else []
    assert state_differences(theirs, engine, *prompts) < 1e-4
