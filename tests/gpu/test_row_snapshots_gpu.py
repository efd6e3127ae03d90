"""Snapshots of row state on a GPU: copied and restored beside captured graphs, a step ahead."""

import pytest
import torch
from support.row_chats import CASES, cold_and_warm, is_same

GRAPHS = {"device": "cuda", "executor": "breakable", "depth": 1, "arithmetic": "fixed"}


@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
@pytest.mark.parametrize(("family", "drafter"), CASES)
def test_a_cached_turn_has_the_tokens_and_drafts_of_a_cold_one(family, drafter, sampling):
    torch.backends.cuda.matmul.allow_tf32 = False
    cold, warm, again = cold_and_warm(family, drafter, sampling=sampling, **GRAPHS)
    assert is_same(warm, cold)
    assert is_same(again, cold)
    assert warm[1].cached >= 16  # the first prompt has at most 15 tokens
