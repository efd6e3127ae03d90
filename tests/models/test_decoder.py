"""The decoder against transformers, family by family, through real plans."""

import pytest
import torch
from support.decoders import expected_logits, harness_of, prompt
from support.styled_families import STYLED_FAMILIES
from support.tiny import (
    FAMILIES,
    GLM_FAMILIES,
    LATENT_FAMILIES,
    SPARSE_FAMILIES,
    VOCAB,
    save_tiny,
)
from transformers import LlamaConfig, LlamaForCausalLM

from outrider.step.tape_executor import TapeExecutor

TOLERANCE = 1e-4  # largest difference of any logit, in float32
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}


def small_llama(**changes):
    torch.manual_seed(0)
    sizes = {"hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 1, "vocab_size": VOCAB}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, **changes)).eval()


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("family", STYLED_FAMILIES)
def test_logits_of_layers_that_differ_equal_those_of_transformers(family, tmp_path):
    model = save_tiny(family, tmp_path)
    tokens = prompt(33)
    logits = harness_of(tmp_path).run({}, {1: (0, tokens)})
    assert (logits - expected_logits(model, tokens)).abs().max() <= TOLERANCE


@pytest.mark.parametrize("family", [*FAMILIES, *SPARSE_FAMILIES, *GLM_FAMILIES, *LATENT_FAMILIES])
def test_prompt_logits_equal_those_of_transformers(family, tmp_path):
    model = save_tiny(family, tmp_path)
    tokens = prompt(33)
    logits = harness_of(tmp_path).run({}, {1: (0, tokens)})
    assert (logits - expected_logits(model, tokens)).abs().max() <= TOLERANCE


@pytest.mark.parametrize(
    "changes",
    [{"head_dim": 20}, {"rope_parameters": YARN, "max_position_embeddings": 256}],
    ids=["head_dim", "yarn"],
)
def test_unusual_llama_settings_equal_transformers(changes, tmp_path):
    model = small_llama(**changes)
    model.save_pretrained(tmp_path)
    tokens = prompt(33)
    logits = harness_of(tmp_path).run({}, {1: (0, tokens)})
    assert (logits - expected_logits(model, tokens)).abs().max() <= TOLERANCE


@pytest.mark.parametrize("num_rows", [1, 2, 3, 5])
def test_decoding_after_a_prompt_equals_one_prompt_of_all_tokens(num_rows, tmp_path):
    model = save_tiny("qwen3", tmp_path)
    harness = harness_of(tmp_path)
    prompts = {row: prompt(6 + row, seed=row) for row in range(1, num_rows + 1)}
    for row, tokens in prompts.items():
        harness.run({}, {row: (0, tokens[:-1])})
    logits = harness.run({row: (len(t) - 1, t[-1]) for row, t in prompts.items()}, {})
    for tokens, ours in zip(prompts.values(), logits, strict=True):
        assert (ours - expected_logits(model, tokens)[-1]).abs().max() <= TOLERANCE


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_the_forward_pass_replays_from_a_tape(dtype, tmp_path):
    save_tiny("qwen2", tmp_path)
    tape, eager, taped = TapeExecutor(), harness_of(tmp_path, dtype), harness_of(tmp_path, dtype)
    for seed in (1, 2):
        tokens = prompt(7, seed)
        expected = eager.run({}, {1: (0, tokens)})
        assert torch.equal(taped.run({}, {1: (0, tokens)}, tape.run), expected)


def test_int8_logits_are_close_to_float32(tmp_path):
    small_llama().save_pretrained(tmp_path)
    tokens = prompt(33)
    exact = harness_of(tmp_path).run({}, {1: (0, tokens)})
    rounded = harness_of(tmp_path, "int8").run({}, {1: (0, tokens)})
    assert (rounded - exact).norm() <= 0.02 * exact.norm()


@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.parametrize("num_others", [1, 4])
def test_logits_of_a_row_do_not_depend_on_other_rows(num_others, dtype, tmp_path):
    save_tiny("llama", tmp_path)
    rows = {row: (0, token) for row, token in enumerate(prompt(num_others + 1), start=1)}
    alone = harness_of(tmp_path, dtype).run({1: rows[1]}, {})
    together = harness_of(tmp_path, dtype).run(rows, {})
    assert torch.equal(together[0], alone[0])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_logits_are_close_to_float32(dtype, tmp_path):
    small_llama().save_pretrained(tmp_path)
    tokens = prompt(9)
    exact = harness_of(tmp_path).run({}, {1: (0, tokens)})
    rounded = harness_of(tmp_path, dtype).run({}, {1: (0, tokens)})
    assert (rounded - exact).norm() <= 0.03 * exact.norm()
