"""Shapes of well-known models, by name, to be filled with random weights. No torch."""

from dataclasses import dataclass
from typing import Any

from outrider.errors import ConfigError
from outrider.models.deepseek_v4.v4_config import V4Config, parse_v4
from outrider.models.model_config import ModelConfig, parse_config


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A model without weights, and the vocabulary of an EAGLE-3 head for it (0: there is none)."""

    name: str
    config: ModelConfig | V4Config
    draft_vocab: int
    is_cut: bool = False  # to a few layers


_LLAMA = {"architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5}
_DEEPSEEK_ROPE = {
    "type": "yarn",
    "factor": 40,
    "beta_fast": 32,
    "beta_slow": 1,
    "original_max_position_embeddings": 4096,
}
_FIELDS: dict[str, dict[str, Any]] = {
    "llama-8b": {  # Llama-3.1-8B
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "mistral-7b": {  # v0.1, with a sliding window in every layer
        "architectures": ["MistralForCausalLM"],
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "max_position_embeddings": 32768,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
    },
    "mimo-7b": {
        "architectures": ["MiMoForCausalLM"],
        "num_hidden_layers": 36,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 151680,
        "max_position_embeddings": 32768,
        "rope_theta": 640000.0,
    },
    "smollm2-135m": {
        "num_hidden_layers": 30,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
    },
    "deepseek-v2-lite": {
        "architectures": ["DeepseekV2ForCausalLM"],
        "rms_norm_eps": 1e-6,
        "num_hidden_layers": 27,
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "num_attention_heads": 16,
        "q_lora_rank": None,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "first_k_dense_replace": 1,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 1408,
        "topk_method": "greedy",
        "vocab_size": 102400,
        "max_position_embeddings": 163840,
        "rope_scaling": _DEEPSEEK_ROPE | {"mscale": 0.707, "mscale_all_dim": 0.707},
    },
    "deepseek-v3": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "rms_norm_eps": 1e-6,
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "num_attention_heads": 128,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "first_k_dense_replace": 3,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "n_group": 8,
        "topk_group": 4,
        "routed_scaling_factor": 2.5,
        "vocab_size": 129280,
        "max_position_embeddings": 163840,
        "rope_scaling": _DEEPSEEK_ROPE | {"mscale": 1.0, "mscale_all_dim": 1.0},
    },
    "qwen3-next": {  # Qwen3-Next-80B-A3B: three layers with a state for each that attends
        "architectures": ["Qwen3NextForCausalLM"],
        "rms_norm_eps": 1e-6,
        "num_hidden_layers": 48,
        "hidden_size": 2048,
        "intermediate_size": 5120,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "partial_rotary_factor": 0.25,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "norm_topk_prob": True,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "vocab_size": 151936,
        "max_position_embeddings": 262144,
        "rope_theta": 10000000.0,
    },
    "tiny-recurrent": {  # as tiny, with states and experts
        "architectures": ["Qwen3NextForCausalLM"],
        "num_hidden_layers": 4,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "vocab_size": 512,
        "max_position_embeddings": 4096,
    },
    "tiny-latent": {  # as tiny, with latents and experts
        "architectures": ["DeepseekV3ForCausalLM"],
        "num_hidden_layers": 4,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16,
        "v_head_dim": 16,
        "first_k_dense_replace": 1,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "n_group": 1,
        "routed_scaling_factor": 1.0,
        "vocab_size": 512,
        "max_position_embeddings": 4096,
    },
    "tiny": {  # runs fast on a CPU
        "num_hidden_layers": 4,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
        "max_position_embeddings": 4096,
    },
}
_V4 = {  # the sizes of DeepSeek-V4-Flash, a layer of which has 13 GB of experts
    "vocab_size": 129280,
    "hidden_size": 4096,
    "moe_intermediate_size": 2048,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 1024,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "sliding_window": 128,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "rope_theta": 10000.0,
    "compress_rope_theta": 160000.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16.0,
        "original_max_position_embeddings": 65536,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "max_position_embeddings": 1048576,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "scoring_func": "sqrtsoftplus",
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 10.0,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "rms_norm_eps": 1e-6,
}
_V4_TINY = _V4 | {  # runs fast on a CPU
    "vocab_size": 512,
    "hidden_size": 64,
    "moe_intermediate_size": 32,
    "num_attention_heads": 4,
    "head_dim": 16,
    "qk_rope_head_dim": 8,
    "q_lora_rank": 24,
    "o_groups": 2,
    "o_lora_rank": 12,
    "sliding_window": 8,
    "index_n_heads": 8,
    "index_head_dim": 16,
    "index_topk": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 4096,
}
# The ratio of each layer's blocks; the first layer chooses experts by token id.
_V4_RATIOS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "deepseek-v4": (_V4, (0, 4, 128, 4)),
    "deepseek-v4-window": (_V4, (0, 0)),
    "deepseek-v4-sparse": (_V4, (4, 4)),
    "deepseek-v4-heavy": (_V4, (128, 128)),
    "deepseek-v4-tiny": (_V4_TINY, (0, 4, 128, 4)),
}
_DRAFT_VOCAB = 32000
_CUT_VOCAB = 4096  # of a body that is cut: its head costs almost nothing


def find_body(name: str, *, layers: int = 0) -> Body:
    """The body of this name, or the names there are; cut to so many layers unless that is 0.

    The remaining layers are of the most frequent kind: with experts, if the model has any.
    """
    if name in _V4_RATIOS:
        return _v4_body(name, layers)
    if name not in _FIELDS:
        names = ", ".join((*_FIELDS, *_V4_RATIOS))
        raise ConfigError(f"unknown body {name!r}; use {names}, or --model")
    fields: dict[str, Any] = _LLAMA | _FIELDS[name]
    if layers:
        cut = {"num_hidden_layers": layers, "first_k_dense_replace": 0}
        fields |= cut | {"vocab_size": min(fields["vocab_size"], _CUT_VOCAB)}
    config = parse_config(fields)
    return Body(
        name=f"{name}, {layers} layers" if layers else name,
        config=config,
        draft_vocab=_DRAFT_VOCAB if config.vocab_size > _DRAFT_VOCAB else config.vocab_size // 4,
        is_cut=layers > 0,
    )


def _v4_body(name: str, layers: int) -> Body:
    """Always cut, with its vocabulary: no device holds all its layers."""
    fields, ratios = _V4_RATIOS[name]
    if layers:
        ratios = tuple(ratios[layer % len(ratios)] for layer in range(layers))
    cut = {
        "num_hidden_layers": len(ratios),
        "compress_ratios": list(ratios),
        "num_hash_layers": 1,
        "vocab_size": min(fields["vocab_size"], _CUT_VOCAB),
    }
    return Body(
        name=f"{name}, {layers} layers" if layers else name,
        config=parse_v4(fields | cut),
        draft_vocab=0,
        is_cut=True,
    )
