"""Known mistakes on several ranks, put in one at a time: tests must notice each of them."""

from dataclasses import replace

import pytest
from support.engines import Shape
from support.rank_matrix import RankCase, RankMatrix
from support.thread_ranks import ThreadRank

from outrider.models import cut_head, decoder_loader
from outrider.models.layers import reduced_layers
from outrider.models.rank_cuts import RankCuts

PLAIN = RankCase(
    family="llama",
    size=2,
    shape=Shape(),
    sampling="greedy",
    drafter="none",
    tree="chain",
    is_prefix_hit=False,
    is_adaptive=False,
)
GRAMMAR = replace(PLAIN, sampling="grammar")
UNGATHERED = replace(PLAIN, has_logprobs=False)
SHARED_HEADS = replace(PLAIN, size=4)  # two key-value heads on four ranks


def decide_locally(monkeypatch):
    """Every rank uses its own trees and masks."""
    monkeypatch.setattr(ThreadRank, "copy_first_", lambda self, x: None)


def choose_from_the_own_tokens(monkeypatch):
    monkeypatch.setattr(ThreadRank, "take_largest_", lambda self, x: None)


def add_the_residual_on_all_ranks(monkeypatch):
    monkeypatch.setattr(reduced_layers, "_residual_of", lambda ranks, residual: residual)


def sum_nothing(monkeypatch):
    monkeypatch.setattr(ThreadRank, "add_up_", lambda self, x: None)


def read_the_key_heads_of_another_rank(monkeypatch):
    cut = RankCuts.cut

    def shifted(self, name):
        if "k_proj" not in name:
            return cut(self, name)
        other = (self._rank + 1) % len(self._shares)
        return cut(RankCuts(self._whole, self._shares, other), name)

    monkeypatch.setattr(RankCuts, "cut", shifted)


def score_the_tokens_of_another_rank(monkeypatch):
    original = cut_head.head_cut

    def swapped(vocab_size, ranks):
        return original(vocab_size, ThreadRank(None, ranks.size - 1 - ranks.rank, ranks.size))

    monkeypatch.setattr(decoder_loader, "head_cut", swapped)


@pytest.mark.parametrize(
    ("mutate", "case"),
    [
        (decide_locally, GRAMMAR),
        (choose_from_the_own_tokens, UNGATHERED),
        (add_the_residual_on_all_ranks, PLAIN),
        (sum_nothing, PLAIN),
        (read_the_key_heads_of_another_rank, PLAIN),
        (read_the_key_heads_of_another_rank, SHARED_HEADS),
        (score_the_tokens_of_another_rank, PLAIN),
    ],
)
def test_the_matrix_catches(monkeypatch, tmp_path, mutate, case):
    """A wrong answer, or ranks that differ."""
    if case.sampling == "grammar":
        pytest.importorskip("xgrammar")
    mutate(monkeypatch)
    assert RankMatrix(tmp_path).mismatches(case)
