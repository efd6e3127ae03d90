"""Tiny random models whose layers differ from a Llama in windows, ropes, norms or multipliers."""

from transformers import (
    Cohere2Config,
    Cohere2ForCausalLM,
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    Ministral3Config,
    Ministral3ForCausalLM,
    MinistralConfig,
    MinistralForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
    OlmoConfig,
    OlmoForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from support.tiny_sizes import SIZES

_PAD = {"pad_token_id": 0}
_TWO_ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 5000.0,
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 64,
}
# Of texts that are not longer than the original context. A quarter of a head is not rotated.
LONGROPE = {
    "original_max_position_embeddings": SIZES["max_position_embeddings"],
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 5000.0,
        "short_factor": [1.0, 1.7, 3.0],
        "long_factor": [1.5, 4.0, 9.0],
        "attention_factor": 1.3,
        "partial_rotary_factor": 0.75,
    },
}
_LAST_FULL = ["sliding_attention", "sliding_attention", "full_attention"]


def _gpt_oss(limit):
    config = GptOssConfig(
        **SIZES,
        head_dim=16,
        sliding_window=5,
        num_local_experts=6,
        num_experts_per_tok=3,
        swiglu_limit=limit,
        rope_parameters=_YARN,
    )
    model = GptOssForCausalLM(config)
    for layer in model.model.layers:
        layer.mlp.experts.limit = limit  # some versions of transformers do not read the field
    return model


# Attention chunks end inside of prompts and drafts, and scores grow inside of them.
LLAMA4 = Llama4TextConfig(
    **SIZES | _PAD,
    head_dim=16,
    intermediate_size_mlp=40,
    num_local_experts=6,
    num_experts_per_tok=1,
    moe_layers=[1, 2],
    no_rope_layers=[1, 0, 1],
    attention_chunk_size=7,
    floor_scale=3,
    attn_scale=0.5,
    rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
)

# Scores grow inside of prompts and drafts.
MINISTRAL3 = Ministral3Config(
    **SIZES | _PAD,
    head_dim=16,
    rope_parameters={
        **_YARN,
        "original_max_position_embeddings": 12,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
        "llama_4_scaling_beta": 0.7,
        "max_position_embeddings": 256,
    },
)

# Windows end inside of prompts, drafts and pages.
STYLED_FAMILIES = {
    "mistral-window": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=7)),
    "ministral": lambda: MinistralForCausalLM(
        MinistralConfig(**SIZES, head_dim=8, sliding_window=5, layer_types=_LAST_FULL)
    ),
    "ministral3": lambda: Ministral3ForCausalLM(MINISTRAL3),
    "qwen3-window": lambda: Qwen3ForCausalLM(  # the first layer sees its whole text
        Qwen3Config(
            **SIZES, head_dim=16, use_sliding_window=True, sliding_window=3, max_window_layers=1
        )
    ),
    "gemma2": lambda: Gemma2ForCausalLM(  # small caps: scores and logits reach them
        Gemma2Config(
            **SIZES,
            head_dim=16,
            query_pre_attn_scalar=24,
            sliding_window=5,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=8.0,
        )
    ),
    "gemma3": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(
            **SIZES,
            head_dim=16,
            query_pre_attn_scalar=24,
            sliding_window=5,
            layer_types=_LAST_FULL,
            rope_parameters=_TWO_ROPES,
        )
    ),
    "smollm3": lambda: SmolLM3ForCausalLM(
        SmolLM3Config(**SIZES | _PAD, no_rope_layers=[1, 0, 1], tie_word_embeddings=True)
    ),
    "phi4-mini": lambda: Phi3ForCausalLM(Phi3Config(**SIZES | _PAD | LONGROPE)),
    "phi3": lambda: Phi3ForCausalLM(Phi3Config(**SIZES | _PAD, sliding_window=6)),
    "granite": lambda: GraniteForCausalLM(
        GraniteConfig(
            **SIZES,
            embedding_multiplier=3.0,
            residual_multiplier=0.4,
            attention_multiplier=0.2,
            logits_scaling=1.5,
        )
    ),
    "cohere": lambda: CohereForCausalLM(
        CohereConfig(**SIZES | _PAD, layer_norm_eps=1e-3, logit_scale=0.5)
    ),
    "command-r-plus": lambda: CohereForCausalLM(
        CohereConfig(**SIZES | _PAD, layer_norm_eps=1e-3, logit_scale=0.5, use_qk_norm=True)
    ),
    "cohere2": lambda: Cohere2ForCausalLM(
        Cohere2Config(**SIZES | _PAD, sliding_window=5, layer_types=_LAST_FULL, logit_scale=0.5)
    ),
    "gpt-oss": lambda: _gpt_oss(limit=0.7),  # small: gates and ups reach it
    "llama4": lambda: Llama4ForCausalLM(LLAMA4),
    "olmo": lambda: OlmoForCausalLM(OlmoConfig(**SIZES | _PAD, clip_qkv=1.5)),  # many reach it
    "olmo2": lambda: Olmo2ForCausalLM(Olmo2Config(**SIZES | _PAD)),
    "olmo3": lambda: Olmo3ForCausalLM(
        Olmo3Config(**SIZES | _PAD, sliding_window=5, layer_types=_LAST_FULL)
    ),
}
