"""GGUF files of families besides Llama and Qwen: the logits are those of the original model."""

import pytest
import torch
from safetensors.torch import load_file
from support.decoders import expected_logits, harness_of, prompt
from support.gguf_models import random_norms, write_model
from support.styled_families import LONGROPE
from support.tiny import EXPERTS
from support.tiny_sizes import SIZES
from transformers import (
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Ministral3Config,
    Ministral3ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from outrider.errors import ConfigError
from outrider.hub.download_progress import SilentReporter
from outrider.hub.gguf_convert import convert

TOKENS = prompt(40)
SIZES = SIZES | {"vocab_size": 258, "bos_token_id": None, "eos_token_id": 0, "pad_token_id": None}
ROPE = {"rope_type": "default", "rope_theta": 5000.0}
LONG = LONGROPE["rope_parameters"]
YARN = {
    "rope_type": "yarn",
    "rope_theta": 5000.0,
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 12,
    "mscale": 1.0,
    "mscale_all_dim": 0.5,
    "llama_4_scaling_beta": 0.7,
}
GEMMA_ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
LAYERS = ["sliding_attention"] * 5 + ["full_attention"]


def qwen3_moe():
    config = Qwen3MoeConfig(
        **SIZES | EXPERTS, head_dim=16, norm_topk_prob=True, rope_parameters=ROPE
    )
    return Qwen3MoeForCausalLM(config)


def gemma3():
    config = Gemma3TextConfig(
        **SIZES | {"num_hidden_layers": 6, "tie_word_embeddings": True},
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=5,
        layer_types=LAYERS,
        rope_parameters=GEMMA_ROPES,
    )
    return Gemma3ForCausalLM(config)


def phi3(**fields):
    return Phi3ForCausalLM(Phi3Config(**SIZES, **fields))


CASES = {
    "qwen3moe": (
        "qwen3moe",
        qwen3_moe,
        {
            "rope.freq_base": 5000.0,
            "attention.key_length": 16,
            "attention.value_length": 16,
            "expert_count": EXPERTS["num_experts"],
            "expert_used_count": EXPERTS["num_experts_per_tok"],
            "expert_feed_forward_length": EXPERTS["moe_intermediate_size"],
        },
    ),
    "gemma3": (
        "gemma3",
        gemma3,
        {
            "rope.freq_base": 5000.0,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
            "attention.key_length": 16,
            "attention.value_length": 16,
            "attention.sliding_window": 5,
        },
    ),
    "phi3": (
        "phi3",
        lambda: phi3(sliding_window=6, rope_parameters=ROPE),
        {
            "rope.freq_base": 5000.0,
            "rope.dimension_count": 8,
            "rope.scaling.original_context_length": 256,
            "attention.sliding_window": 6,
        },
    ),
    "phi3, long": (
        "phi3",
        lambda: phi3(rope_parameters=LONG, original_max_position_embeddings=256),
        {
            "rope.freq_base": 5000.0,
            "rope.dimension_count": 6,
            "rope.scaling.original_context_length": 256,
            "rope.scaling.attn_factor": 1.3,
            "attention.sliding_window": 0,
        },
    ),
    "ministral3": (
        "mistral3",
        lambda: Ministral3ForCausalLM(Ministral3Config(**SIZES, head_dim=16, rope_parameters=YARN)),
        {
            "rope.freq_base": 5000.0,
            "rope.dimension_count": 16,
            "attention.key_length": 16,
            "attention.value_length": 16,
            "attention.temperature_scale": 0.7,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 12,
            "rope.scaling.yarn_beta_fast": 32.0,
            "rope.scaling.yarn_beta_slow": 1.0,
            "rope.scaling.yarn_log_multiplier": 0.5,
        },
    ),
    "mistral-small": (
        "mistral3",
        lambda: MistralForCausalLM(
            MistralConfig(**SIZES, head_dim=16, sliding_window=None, rope_parameters=ROPE)
        ),
        {
            "rope.freq_base": 5000.0,
            "attention.key_length": 16,
            "attention.value_length": 16,
        },
    ),
}


def converted(case, folder, **kind):
    architecture, make, metadata = CASES[case]
    torch.manual_seed(1)
    model = random_norms(make())
    model.config._attn_implementation = "eager"
    path = write_model(model, architecture, folder / "tiny.gguf", metadata=metadata, **kind)
    convert(path, folder, SilentReporter())
    return model


@pytest.mark.fast_cases(99)
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_original_model(case, tmp_path):
    model = converted(case, tmp_path)
    right = expected_logits(model, TOKENS)
    logits = harness_of(tmp_path).run({}, {1: (0, TOKENS)})
    assert (logits - right).abs().max() <= 1e-4
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert (expected_logits(theirs, TOKENS) - right).abs().max() <= 1e-4


def test_experts_of_blocks_are_written_one_by_one(tmp_path):
    architecture, _, metadata = CASES["qwen3moe"]
    sizes = SIZES | EXPERTS | {"moe_intermediate_size": 64}
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, head_dim=16, rope_parameters=ROPE))
    metadata = metadata | {"expert_feed_forward_length": 64}
    path = write_model(model, architecture, tmp_path / "a.gguf", metadata=metadata, kind="Q8_0")
    convert(path, tmp_path, SilentReporter())
    stored = load_file(tmp_path / "model.safetensors")
    for layer, block in enumerate(model.model.layers):
        for expert, down in enumerate(block.mlp.experts.down_proj):
            name = f"model.layers.{layer}.mlp.experts.{expert}.down_proj.weight"
            assert (stored[name] - down).abs().max() <= 0.01 * down.abs().max()


def test_an_unknown_scaling_of_ministral_is_refused(tmp_path):
    architecture, make, metadata = CASES["ministral3"]
    metadata = metadata | {"rope.scaling.yarn_ext_factor": 0.5}
    path = write_model(make(), architecture, tmp_path / "tiny.gguf", metadata=metadata)
    with pytest.raises(ConfigError, match=r"yarn_ext_factor.*which is not supported; use the"):
        convert(path, tmp_path, SilentReporter())
