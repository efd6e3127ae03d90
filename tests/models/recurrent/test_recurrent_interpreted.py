"""Recurrent models on their own kernels, interpreted: a GPU agrees with transformers too."""

import pytest
import torch
from support.recurrent import expected_logits, harness_of, prompt, saved_recurrent

pytest.importorskip("triton")
from outrider.models.recurrent import delta_layer as layers
from outrider.models.recurrent.recurrent_plan import RecurrentAttention
from outrider.ops.recurrent import delta_rule as laws
from outrider.ops.recurrent import delta_rule_triton as kernels

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs them compiled")


@pytest.fixture
def on_kernels(monkeypatch):
    """Every law with a kernel runs it."""
    fill, fill_on_gpu = RecurrentAttention.fill, RecurrentAttention.fill_on_gpu

    def fill_by_kernels(self, plan, scope):
        before = self._state_lengths.clone()
        fill(self, plan, scope)  # for the backend's part
        self._state_lengths.copy_(before)
        fill_on_gpu(self, plan, scope)

    def causal_conv(tokens, part, conv_weight):
        return kernels.causal_conv(tokens.ring, tokens.fresh, part.sources, conv_weight)

    def gated_norm(self, read, gate):
        return kernels.gated_norm(read, gate, self._norm.weight, self._norm.eps)

    monkeypatch.setattr(RecurrentAttention, "fill", fill_by_kernels)
    monkeypatch.setattr(layers, "causal_conv", causal_conv)
    monkeypatch.setattr(layers, "gated_delta_rule", laws.recur_on_gpu)
    monkeypatch.setattr(layers.GatedNorm, "__call__", gated_norm)


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
    wrong = [0, 0]  # taken back by the step after
    logits = harness.run(
        {1: (15, texts[1][15:16] + wrong), 2: (4, texts[2][4:7])}, {3: (0, texts[3][:5])}, nodes=3
    )
    assert_close(logits[:1], 1, 15, 16)
    assert_close(logits[3:6], 2, 4, 7)
    assert_close(logits[9:14], 3, 0, 5)
    logits = harness.run({1: (16, texts[1][16:19]), 2: (7, texts[2][7:10])}, {}, nodes=3)
    assert_close(logits[:3], 1, 16, 19)
    assert_close(logits[3:6], 2, 7, 10)
