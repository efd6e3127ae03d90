"""DeepSeek-V4's kernels, interpreted, do what the references do. tests/gpu compiles them."""

import pytest
import torch

pytest.importorskip("triton")
from support.v4_kernels import (
    BlockCase,
    ChoiceCase,
    SparseCase,
    check_attention,
    check_choice,
    check_chunk_bits,
    check_entries,
    check_partial_rope,
    check_streams,
)

from outrider.ops.sparse import indexer_triton as index
from outrider.ops.sparse import sparse_attention_triton as sparse

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TYPES = [torch.float32, torch.float16]  # the interpreter does not round to bfloat16


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("num", "heads", "width", "pairs"), [(1, 1, 4, 2), (3, 5, 12, 4), (2, 3, 40, 8), (2, 1, 16, 1)]
)
def test_vectors_are_normalised_and_turned_at_their_end(num, heads, width, pairs, dtype):
    check_partial_rope(num, heads, width, pairs, (DEVICE, dtype))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "case",
    [
        BlockCase(window=8, series=2, width=12, pairs=4),
        BlockCase(window=16, series=1, width=20, pairs=2),
        BlockCase(window=6, series=2, width=16, pairs=8),
        BlockCase(window=3, series=1, width=6, pairs=3, windows=1),
    ],
    ids=str,
)
def test_blocks_that_end_become_entries_and_the_others_write_nothing(case, dtype):
    check_entries(case, (DEVICE, dtype))


CHOICES = [
    ChoiceCase(heads=3, width=12, per_page=4, columns=5, top_k=3, counts=(0, 1, 3, 4, 17, 20)),
    ChoiceCase(heads=8, width=20, per_page=1, columns=90, top_k=64, counts=(90, 64, 65, 2)),
    ChoiceCase(heads=1, width=6, per_page=2, columns=3, top_k=9, counts=(6, 5)),
    # The count of padding may exceed its list.
    ChoiceCase(heads=3, width=12, per_page=4, columns=5, top_k=3, counts=(40, 20, 33, 1, 17)),
    ChoiceCase(heads=2, width=12, per_page=2, columns=3, top_k=9, counts=(12, 7, 6, 5)),
]


@pytest.mark.parametrize("case", CHOICES, ids=str)
def test_the_entries_that_match_best_are_chosen(case):
    check_choice(case, (DEVICE, torch.float32))


def test_many_scores_are_looked_through_in_tiles_and_tokens_taken_in_turns(monkeypatch):
    # A compiled tile has at least as many scores as threads.
    monkeypatch.setattr(index, "_TILE", 16 if DEVICE == "cpu" else index._LEAST_TILE)
    monkeypatch.setattr(index, "MOST_SCORES", 2 * 90)
    check_choice(CHOICES[1], (DEVICE, torch.float32))


SPARSE = [
    SparseCase(
        heads=5, width=12, window=8, per_page=4, columns=5, counts=(0, 3, 20, 7, 1), chains=3
    ),
    SparseCase(heads=20, width=40, window=3, per_page=1, columns=70, counts=(70, 66, 0), chains=3),
    SparseCase(heads=4, width=16, window=9, per_page=2, columns=0, counts=(0, 0), chains=1),
    SparseCase(heads=33, width=20, window=70, per_page=3, columns=2, counts=(6, 5, 4), chains=0),
]


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("case", SPARSE, ids=str)
def test_window_entries_and_sink_share_one_softmax(case, dtype):
    check_attention(case, (DEVICE, dtype), roundings=1 if dtype == torch.float32 else 3)


def test_a_token_has_the_same_bits_in_a_chunk_and_in_a_chain():
    case = SparseCase(
        heads=4, width=16, window=70, per_page=4, columns=25, counts=(0, 64, 99), chains=0
    )
    check_chunk_bits(case, (DEVICE, torch.float32))


def test_chains_that_exceed_the_workspace_are_taken_in_turns(monkeypatch):
    monkeypatch.setattr(sparse, "MOST_PARTIALS", 1)
    check_attention(SPARSE[0], (DEVICE, torch.float32), roundings=1)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("num", "streams", "hidden"), [(1, 2, 12), (19, 4, 40), (3, 1, 70)])
def test_streams_are_mixed_as_in_the_reference(num, streams, hidden, dtype):
    check_streams(num, streams, hidden, (DEVICE, dtype), roundings=3)
