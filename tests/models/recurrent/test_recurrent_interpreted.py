"""Recurrent models on their own kernels, interpreted: a GPU agrees with transformers too."""

import math

import pytest
import torch
from support.poisoned_rows import assert_blind_to_what_was_there, assert_logits_of, steps
from support.recurrent import expected_logits, harness_of, prompt, saved_recurrent

pytest.importorskip("triton")
from outrider.models.recurrent import delta_layer as layers
from outrider.models.recurrent import recurrent_plan as plans
from outrider.ops.recurrent.causal_conv_triton import causal_conv_triton
from outrider.ops.recurrent.delta_rule_triton import gated_delta_rule_triton
from outrider.ops.recurrent.fill_recurrent_triton import fill_recurrent_triton
from outrider.ops.recurrent.gated_norm_triton import gated_norm_triton

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs them compiled")
TEXTS = {row: prompt(24, seed=row) for row in (1, 2, 3)}


@pytest.fixture(scope="module")
def on_kernels():
    """Every operation runs its kernel."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(plans, "fill_recurrent", fill_recurrent_triton)
        monkeypatch.setattr(layers, "causal_conv", causal_conv_triton)
        monkeypatch.setattr(layers, "gated_delta_rule", gated_delta_rule_triton)
        monkeypatch.setattr(layers, "gated_norm", gated_norm_triton)
        yield


@pytest.fixture(scope="module")
def qwen3_next(folders):
    theirs = saved_recurrent(folders["qwen3-next"], "qwen3-next")
    return folders["qwen3-next"], theirs


@pytest.fixture(scope="module")
def clean(qwen3_next, on_kernels):
    """The steps of all tests, on memory that holds zeros."""
    return steps(harness_of(qwen3_next[0], pad=3, nodes=3), TEXTS)


@pytest.mark.slow
def test_chunks_chains_and_padding_on_the_kernels_have_the_logits_of_transformers(
    qwen3_next, clean
):
    _, theirs = qwen3_next
    assert_logits_of(clean, {row: expected_logits(theirs, text) for row, text in TEXTS.items()})


@pytest.mark.slow
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_kernels_never_read_what_was_there_before(value, qwen3_next, clean):
    poisoned = harness_of(qwen3_next[0], pad=3, nodes=3)
    assert_blind_to_what_was_there(clean, poisoned, TEXTS, value)
