"""Tiny random models whose layers differ from a Llama: sliding windows in all or some layers."""

from transformers import (
    MinistralConfig,
    MinistralForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from support.tiny_sizes import SIZES

_LAST_FULL = ["sliding_attention", "sliding_attention", "full_attention"]
# Windows end inside of prompts, drafts and pages.
STYLED_FAMILIES = {
    "mistral-window": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=7)),
    "ministral": lambda: MinistralForCausalLM(
        MinistralConfig(**SIZES, head_dim=8, sliding_window=5, layer_types=_LAST_FULL)
    ),
    "qwen3-window": lambda: Qwen3ForCausalLM(  # the first layer sees its whole text
        Qwen3Config(
            **SIZES, head_dim=16, use_sliding_window=True, sliding_window=3, max_window_layers=1
        )
    ),
}
