"""Shapes of well-known models, by name, to be filled with random weights. No torch."""

from dataclasses import dataclass
from typing import Any

from outrider.errors import ConfigError
from outrider.models.config import ModelConfig, parse_config


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A model without weights, and the vocabulary of an EAGLE-3 head for it."""

    name: str
    config: ModelConfig
    draft_vocab: int


_LLAMA = {"architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5}
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
    "tiny": {  # runs on a CPU in no time
        "num_hidden_layers": 4,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
        "max_position_embeddings": 4096,
    },
}
_DRAFT_VOCABS = {"llama-8b": 32000, "mimo-7b": 32000, "smollm2-135m": 32000, "tiny": 128}


def find_body(name: str) -> Body:
    """The body of this name, or the names there are."""
    if name not in _FIELDS:
        raise ConfigError(f"unknown body {name!r}; use {', '.join(_FIELDS)}, or --model")
    return Body(
        name=name,
        config=parse_config(_LLAMA | _FIELDS[name]),
        draft_vocab=_DRAFT_VOCABS[name],
    )
