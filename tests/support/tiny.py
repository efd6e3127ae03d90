"""Tiny random models of every family, saved by transformers."""

from pathlib import Path

import torch
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from support.styled_families import STYLED_FAMILIES
from support.tiny_sizes import SIZES
from support.tiny_vocabulary import VOCAB as VOCAB

UNEVEN = {
    "hidden_size": 40,
    "num_attention_heads": 10,
    "num_key_value_heads": 5,
    "head_dim": 8,
    "intermediate_size": 45,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False)),
    "llama-tied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "llama-uneven": lambda: LlamaForCausalLM(  # 5 groups of heads, and an odd MLP
        LlamaConfig(**SIZES | UNEVEN, tie_word_embeddings=False)
    ),
    "llama3-rope": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=LLAMA3_ROPE)),
    "llama-linear-rope": lambda: LlamaForCausalLM(
        LlamaConfig(
            **SIZES,
            rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
        )
    ),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=True)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16)),
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 20}
SPARSE_FAMILIES = {
    "mixtral": lambda: MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=5)),
    "qwen3-moe": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**SIZES, **EXPERTS, head_dim=16, norm_topk_prob=True)
    ),
    "qwen3-moe-mixed": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**SIZES, **EXPERTS, head_dim=16, mlp_only_layers=[1])
    ),
    "qwen3-moe-every-second": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**SIZES, **EXPERTS, head_dim=16, decoder_sparse_step=2)
    ),
}


LATENTS = {
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
}
MSCALE_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "mscale": 0.8,
    "mscale_all_dim": 0.7,
    "beta_fast": 32,
    "beta_slow": 1,
}
GLM = SIZES | {
    "head_dim": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}
GLM_FAMILIES = {
    "glm4-moe": lambda: Glm4MoeForCausalLM(
        Glm4MoeConfig(**GLM, attention_bias=True, use_qk_norm=True)
    ),
    "glm4-moe-air": lambda: Glm4MoeForCausalLM(Glm4MoeConfig(**GLM, n_shared_experts=2)),
    "glm4-moe-dense": lambda: Glm4MoeForCausalLM(
        Glm4MoeConfig(**GLM | {"first_k_dense_replace": 3})  # all layers; modules have experts
    ),
}
LATENT_FAMILIES = {
    "deepseek-v2-lite": lambda: DeepseekV2ForCausalLM(
        DeepseekV2Config(**SIZES | LATENTS, q_lora_rank=None, n_shared_experts=2)
    ),
    "deepseek-v2": lambda: DeepseekV2ForCausalLM(
        DeepseekV2Config(
            **SIZES | LATENTS,
            q_lora_rank=16,
            n_shared_experts=1,
            topk_method="group_limited_greedy",
            n_group=4,
            topk_group=2,
            routed_scaling_factor=4.0,
            rope_parameters=MSCALE_ROPE,
        )
    ),
    "deepseek-v3": lambda: DeepseekV3ForCausalLM(
        DeepseekV3Config(**SIZES | LATENTS, q_lora_rank=16, n_group=4, topk_group=2)
    ),
    "deepseek-v3-yarn": lambda: DeepseekV3ForCausalLM(
        DeepseekV3Config(
            **SIZES | LATENTS,
            q_lora_rank=None,
            n_group=1,
            topk_group=1,
            rope_interleave=False,
            rope_parameters=MSCALE_ROPE,
        )
    ),
}


def tiny_model(family: str, *, seed: int = 0) -> PreTrainedModel:
    """Random weights, large enough that texts do not repeat one token."""
    torch.manual_seed(seed)
    families = FAMILIES | STYLED_FAMILIES | SPARSE_FAMILIES | GLM_FAMILIES | LATENT_FAMILIES
    model = families[family]().eval()
    # The plain form: other forms ignore soft caps in some versions of transformers.
    model.config._attn_implementation = "eager"
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.35)
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(0.0, 0.2)
    return model


def save_tiny(
    family: str, folder: Path, *, seed: int = 0, disturbance: float = 0.0
) -> PreTrainedModel:
    """Save a model. `disturbance` changes its weights so that it agrees only sometimes."""
    model = tiny_model(family, seed=seed)
    torch.manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += disturbance * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return model
