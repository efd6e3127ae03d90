"""DeepSeek-V4 on its own kernels, interpreted: what runs on a GPU agrees with transformers too."""

import math

import pytest
import torch
from support.poisoned_rows import assert_blind_to_what_was_there, assert_logits_of, steps
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
TEXTS = {row: prompt(24, seed=row) for row in (1, 2, 3)}


@pytest.fixture(scope="module")
def on_kernels():
    """Every operation runs its kernel."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(plans, "fill_compressed", fill_compressed_triton)
        monkeypatch.setattr(blocks, "store_entries", store_entries_triton)
        monkeypatch.setattr(blocks, "select_entries", select_entries_triton)
        monkeypatch.setattr(blocks, "rotate_tail", rotate_tail_triton)
        monkeypatch.setattr(attention, "sparse_attention", sparse_attention_triton)
        monkeypatch.setattr(attention, "rotate_tail", rotate_tail_triton)
        monkeypatch.setattr(attention, "norm_and_rotate", norm_and_rotate_triton)
        monkeypatch.setattr(hyper_connections, "_is_fused", lambda _: True)
        yield


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


@pytest.fixture(scope="module")
def clean(three_layers, on_kernels):
    """The steps of all tests, on memory that holds zeros."""
    return steps(harness_of(three_layers[0], pad=3, nodes=3), TEXTS)


@pytest.mark.slow
def test_chunks_chains_and_padding_on_the_kernels_have_the_logits_of_transformers(
    three_layers, clean
):
    _, theirs = three_layers
    assert_logits_of(clean, {row: expected_logits(theirs, text) for row, text in TEXTS.items()})


@pytest.mark.slow
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_kernels_never_read_what_was_there_before(value, three_layers, clean):
    poisoned = harness_of(three_layers[0], pad=3, nodes=3)
    assert_blind_to_what_was_there(clean, poisoned, TEXTS, value)
