"""On a GPU, layers that keep only their windows give the tokens of layers that keep all."""

from functools import cache

import pytest
import torch
from support.row_chats import is_same
from support.styled_models import StyledModels
from support.windowed_chats import cold_and_warm_windows

DRAFTS = [("none", "chain"), ("ngram", "tree"), ("relative", "tree"), ("eagle3", "chain")]


@pytest.fixture(scope="module")
def models_of(tmp_path_factory):
    torch.backends.cuda.matmul.allow_tf32 = False
    return cache(lambda family: StyledModels(family, tmp_path_factory.mktemp("styled"), "cuda"))


@pytest.mark.parametrize("executor", ["eager", "graph"])
@pytest.mark.parametrize(("drafter", "tree"), DRAFTS)
@pytest.mark.parametrize("family", ["mistral-window", "gemma3", "gpt-oss"])
def test_a_cached_turn_has_the_tokens_and_drafts_of_a_cold_one(
    models_of, family, drafter, tree, executor
):
    how = {"device": "cuda", "executor": executor, "depth": 1}
    cold, warm, again = cold_and_warm_windows(models_of(family), drafter, tree, **how)
    assert is_same(warm, cold)
    assert is_same(again, cold)
    assert warm[1].cached >= 16  # the first prompt has at most 15 tokens
