"""Recurrent models on their own kernels, interpreted: a GPU agrees with transformers too."""

import math

import pytest
import torch
from support.poisoned_rows import assert_blind_to_what_was_there
from support.recurrent import expected_logits, harness_of, prompt, saved_recurrent

pytest.importorskip("triton")
from outrider.models.recurrent import delta_layer as layers
from outrider.models.recurrent import recurrent_plan as plans
from outrider.ops.recurrent.causal_conv_triton import causal_conv_triton
from outrider.ops.recurrent.delta_rule_triton import gated_delta_rule_triton
from outrider.ops.recurrent.fill_recurrent_triton import fill_recurrent_triton
from outrider.ops.recurrent.gated_norm_triton import gated_norm_triton

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs them compiled")


@pytest.fixture
def on_kernels(monkeypatch):
    """Every operation runs its kernel."""
    monkeypatch.setattr(plans, "fill_recurrent", fill_recurrent_triton)
    monkeypatch.setattr(layers, "causal_conv", causal_conv_triton)
    monkeypatch.setattr(layers, "gated_delta_rule", gated_delta_rule_triton)
    monkeypatch.setattr(layers, "gated_norm", gated_norm_triton)


@pytest.mark.slow
def test_chunks_chains_and_padding_on_the_kernels_have_the_logits_of_transformers(
    folders, on_kernels
):
    theirs = saved_recurrent(folders["qwen3-next"], "qwen3-next")
    texts = {row: prompt(24, seed=row) for row in (1, 2, 3)}
    right = {row: expected_logits(theirs, text) for row, text in texts.items()}
    harness = harness_of(folders["qwen3-next"], pad=3, nodes=3)

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
def test_the_kernels_never_read_what_was_there_before(value, folders, on_kernels):
    folder = folders["qwen3-next"]
    saved_recurrent(folder, "qwen3-next")
    clean, poisoned = (harness_of(folder, pad=3, nodes=3) for _ in range(2))
    texts = {row: prompt(24, seed=row) for row in (1, 2, 3)}
    assert_blind_to_what_was_there(clean, poisoned, texts, value)
