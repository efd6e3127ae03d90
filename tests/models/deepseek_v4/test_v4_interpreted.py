"""DeepSeek-V4 on its own kernels, interpreted: what runs on a GPU agrees with transformers too."""

import math

import pytest
import torch
from support.poisoned_rows import assert_blind_to_what_was_there
from support.v4 import C, H, S, expected_logits, harness_of, prompt, tiny_v4

pytest.importorskip("triton")
from outrider.models.deepseek_v4 import compressed_plan as plans
from outrider.models.deepseek_v4 import v4_attention as attention
from outrider.models.deepseek_v4 import v4_blocks as blocks
from outrider.ops.linear import hyper_connections
from outrider.ops.norm_rope.partial_rope_triton import norm_and_rotate_triton, rotate_tail_triton
from outrider.ops.sparse.compress_triton import store_entries_triton
from outrider.ops.sparse.fill_compressed_triton import fill_compressed_triton
from outrider.ops.sparse.indexer_triton import select_entries_triton
from outrider.ops.sparse.sparse_attention_triton import sparse_attention_triton

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs them compiled")


@pytest.fixture
def on_kernels(monkeypatch):
    """Every operation runs its kernel."""
    monkeypatch.setattr(plans, "fill_compressed", fill_compressed_triton)
    monkeypatch.setattr(blocks, "store_entries", store_entries_triton)
    monkeypatch.setattr(blocks, "select_entries", select_entries_triton)
    monkeypatch.setattr(blocks, "rotate_tail", rotate_tail_triton)
    monkeypatch.setattr(attention, "sparse_attention", sparse_attention_triton)
    monkeypatch.setattr(attention, "rotate_tail", rotate_tail_triton)
    monkeypatch.setattr(attention, "norm_and_rotate", norm_and_rotate_triton)
    monkeypatch.setattr(hyper_connections, "_is_fused", lambda _: True)


@pytest.fixture(scope="module")
def three_layers(tmp_path_factory):
    """One layer of each kind: programs of an interpreter take their time."""
    folder = tmp_path_factory.mktemp("three")
    model = tiny_v4(
        num_hidden_layers=3,
        layer_types=[C, H, S],
        mlp_layer_types=["hash_moe", "moe", "moe"],
        num_attention_heads=2,
        o_groups=1,
        index_n_heads=4,
    )
    model.save_pretrained(folder)
    return folder, model


@pytest.mark.slow
def test_chunks_chains_and_padding_on_the_kernels_have_the_logits_of_transformers(
    three_layers, on_kernels
):
    folder, theirs = three_layers
    texts = {row: prompt(24, seed=row) for row in (1, 2, 3)}
    right = {row: expected_logits(theirs, text) for row, text in texts.items()}
    harness = harness_of(folder, pad=3, nodes=3)

    def assert_close(got, row, first, last):
        torch.testing.assert_close(got, right[row][first:last], rtol=0, atol=1e-4)

    logits = harness.run({}, {1: (0, texts[1][:15]), 2: (0, texts[2][:4])})
    assert_close(logits[:15], 1, 0, 15)
    assert_close(logits[15:19], 2, 0, 4)
    wrong = [0, 0]  # rejected by the next step
    logits = harness.run(
        {1: (15, texts[1][15:16] + wrong), 2: (4, texts[2][4:7])}, {3: (0, texts[3][:5])}, nodes=3
    )
    assert_close(logits[:1], 1, 15, 16)
    assert_close(logits[3:6], 2, 4, 7)
    assert_close(logits[9:14], 3, 0, 5)
    logits = harness.run({1: (16, texts[1][16:19]), 2: (7, texts[2][7:10])}, {}, nodes=3)
    assert_close(logits[:3], 1, 16, 19)
    assert_close(logits[3:6], 2, 7, 10)


@pytest.mark.slow
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_kernels_never_read_what_was_there_before(value, three_layers, on_kernels):
    folder = three_layers[0]
    clean, poisoned = (harness_of(folder, pad=3, nodes=3) for _ in range(2))
    texts = {row: prompt(24, seed=row) for row in (1, 2, 3)}
    assert_blind_to_what_was_there(clean, poisoned, texts, value)
