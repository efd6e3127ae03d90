"""Fields of config.json that only some GGUF families have."""

from collections.abc import Callable, Mapping
from typing import Any

from outrider.errors import ConfigError
from outrider.hub.gguf_names import LONG_FACTORS, SHORT_FACTORS
from outrider.hub.gguf_read import GgufFile

_GEMMA3_PERIOD = 6  # the last layer of every so many sees its whole text
_LARGE_GEMMA3 = 62  # layers of the model whose scores are scaled by another width
_USUAL_LOCAL_THETA = 10000.0
_YARN = {
    "factor": "factor",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
    "yarn_log_multiplier": "mscale_all_dim",
}


def check_rotary(file: GgufFile, config: Mapping[str, Any]) -> None:
    """Refuse heads of which only a part is rotated."""
    rotary, values = _rotary(file, config), _value_dim(file, config)
    if not config["head_dim"] == values == rotary:
        raise ConfigError(
            f"{file.name} has keys of {config['head_dim']}, values of {values} and {rotary} rotary "
            "dimensions; use a model where the three are equal"
        )


def _key(file: GgufFile, name: str) -> str:
    return f"{file.metadata.text('general.architecture')}.{name}"


def _rotary(file: GgufFile, config: Mapping[str, Any]) -> int:
    return file.metadata.size_or(_key(file, "rope.dimension_count"), config["head_dim"])


def _value_dim(file: GgufFile, config: Mapping[str, Any]) -> int:
    return file.metadata.size_or(_key(file, "attention.value_length"), config["head_dim"])


def _qwen3_moe(file: GgufFile, config: Mapping[str, Any]) -> dict[str, Any]:
    check_rotary(file, config)
    metadata = file.metadata
    return {
        "num_experts": metadata.size(_key(file, "expert_count")),
        "num_experts_per_tok": metadata.size(_key(file, "expert_used_count")),
        "moe_intermediate_size": metadata.size(_key(file, "expert_feed_forward_length")),
        "norm_topk_prob": True,  # all models of the architecture
    }


def _gemma3(file: GgufFile, config: Mapping[str, Any]) -> dict[str, Any]:
    check_rotary(file, config)
    metadata, layers = file.metadata, config["num_hidden_layers"]
    window = _key(file, "attention.sliding_window")
    cap = metadata.real_or(_key(file, "final_logit_softcapping"), 0.0)
    is_large = layers == _LARGE_GEMMA3
    return {
        "sliding_window": metadata.size(window) if window in metadata else None,
        "layer_types": _layer_types(file, layers, has_windows=window in metadata),
        "rope_local_base_freq": metadata.real_or(
            _key(file, "rope.freq_base_swa"), _USUAL_LOCAL_THETA
        ),
        "query_pre_attn_scalar": config["hidden_size"] // config["num_attention_heads"]
        if is_large
        else config["head_dim"],
        "final_logit_softcapping": cap or None,
    }


def _layer_types(file: GgufFile, layers: int, *, has_windows: bool) -> list[str]:
    key, period = _key(file, "attention.sliding_window_pattern"), _GEMMA3_PERIOD
    if key in file.metadata:
        period = file.metadata.size(key)
    return [
        "sliding_attention" if has_windows and (layer + 1) % period else "full_attention"
        for layer in range(layers)
    ]


def _phi3(file: GgufFile, config: Mapping[str, Any]) -> dict[str, Any]:
    """A part of every head may be rotated. Factors of frequencies are tensors."""
    metadata, head_dim = file.metadata, config["head_dim"]
    window = _key(file, "attention.sliding_window")
    found: dict[str, Any] = {
        "partial_rotary_factor": _rotary(file, config) / head_dim,
        # 0: none
        "sliding_window": (metadata.integer(window) if window in metadata else 0) or None,
        "original_max_position_embeddings": metadata.size_or(
            _key(file, "rope.scaling.original_context_length"), config["max_position_embeddings"]
        ),
        "rope_scaling": None,
        "pad_token_id": None,
    }
    factors = [file.tensors[name].raw.tolist() for name in _factors_in(file)]
    if factors:
        found["rope_scaling"] = {
            "rope_type": "longrope",
            "long_factor": factors[0],
            "short_factor": factors[1],
            "attention_factor": metadata.real(_key(file, "rope.scaling.attn_factor")),
        }
    return found


def _factors_in(file: GgufFile) -> tuple[str, ...]:
    names = (LONG_FACTORS, SHORT_FACTORS)
    found = tuple(name for name in names if name in file.tensors)
    if len(found) == 1:
        raise ConfigError(f"{file.name} has {found[0]} alone of {names}; use a complete GGUF file")
    return found


def _mistral3(file: GgufFile, config: Mapping[str, Any]) -> dict[str, Any]:
    """Ministral-3, whose scores grow with positions; a plain Mistral without that field."""
    check_rotary(file, config)
    metadata, growth = file.metadata, _key(file, "attention.temperature_scale")
    if growth not in metadata:
        return {"sliding_window": None}
    prefix = _key(file, "rope.scaling.")
    keys = metadata.keys_under(prefix)
    unknown = keys - {"type", "original_context_length", "finetuned", *_YARN}
    if unknown or metadata.text(prefix + "type") != "yarn":
        raise ConfigError(
            f"{file.name} scales its rotary embedding with {sorted(keys)}, which is not supported; "
            "use the Hugging Face folder of this model"
        )
    rope = {theirs: metadata.real(prefix + ours) for ours, theirs in _YARN.items() if ours in keys}
    original = metadata.size(prefix + "original_context_length")
    return {
        "architectures": ["Ministral3ForCausalLM"],
        "model_type": "ministral3",
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": config["rope_theta"],
            "original_max_position_embeddings": original,
            "mscale": 1.0,  # not stored; all published models have it
            "llama_4_scaling_beta": metadata.real(growth),
            **rope,
        },
    }


OWN_FIELDS: dict[str, Callable[[GgufFile, Mapping[str, Any]], dict[str, Any]]] = {
    "qwen3moe": _qwen3_moe,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "mistral3": _mistral3,
}
