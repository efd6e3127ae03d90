"""The config.json of a GGUF file: sizes, rotary embedding, and whether the head is tied."""

from typing import Any

import numpy as np

from outrider.errors import ConfigError
from outrider.hub.gguf_family_config import OWN_FIELDS, check_rotary
from outrider.hub.gguf_names import LM_HEAD, ROPE_FREQS, GgufFamily
from outrider.hub.gguf_read import GgufFile, Metadata, RawArray

# Llama 3 scaling as published. Only the factor differs between the models.
_LOW_FREQ_FACTOR = 1.0
_HIGH_FREQ_FACTOR = 4.0
_ORIGINAL_CONTEXT = 8192


def config_of(file: GgufFile, family: GgufFamily) -> dict[str, Any]:
    """The config.json that describes the converted folder."""
    prefix = f"{family.name}."
    metadata = file.metadata
    _refuse_encoders(file, prefix)
    heads = metadata.size(prefix + "attention.head_count")
    config: dict[str, Any] = {
        **family.fields,
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "hidden_size": metadata.size(prefix + "embedding_length"),
        "intermediate_size": metadata.size(prefix + "feed_forward_length"),
        "num_hidden_layers": metadata.size(prefix + "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.size_or(prefix + "attention.head_count_kv", heads),
        "head_dim": _head_dim(metadata, prefix, heads),
        "max_position_embeddings": metadata.size(prefix + "context_length"),
        "rms_norm_eps": metadata.real(prefix + "attention.layer_norm_rms_epsilon"),
        "rope_theta": _rope_theta(metadata, prefix),
        "tie_word_embeddings": LM_HEAD not in file.tensors,
        "torch_dtype": _dtype(file),
    }
    if family.name in OWN_FIELDS:
        config |= OWN_FIELDS[family.name](file, config)
    else:
        check_rotary(file, config)
    if "rope_parameters" not in config and "rope_scaling" not in config:
        config |= _rope_scaling(file, prefix, config)
    return config | _token_ids(metadata)


def _refuse_encoders(file: GgufFile, prefix: str) -> None:
    key = prefix + "attention.causal"
    if key in file.metadata and not file.metadata.flag(key):
        raise ConfigError(
            f"{file.name} sets {key} to false: its tokens see later tokens, which is not "
            "supported; use another model"
        )


def _head_dim(metadata: Metadata, prefix: str, heads: int) -> int:
    even_share = metadata.size(prefix + "embedding_length") // heads
    return metadata.size_or(prefix + "attention.key_length", even_share)


def _rope_theta(metadata: Metadata, prefix: str) -> float:
    key = prefix + "rope.freq_base"
    return metadata.real(key) if key in metadata else 10000.0  # the default of GGUF


def _rope_scaling(file: GgufFile, prefix: str, config: dict[str, Any]) -> dict[str, Any]:
    """The field with the scaling of rotary frequencies; empty when there is none."""
    if ROPE_FREQS in file.tensors:
        theta = config["rope_theta"]
        return {"rope_scaling": _llama3_scaling(file, head_dim=config["head_dim"], theta=theta)}
    prefix += "rope.scaling."
    keys = file.metadata.keys_under(prefix)
    kind = file.metadata.text(prefix + "type") if "type" in keys else "none"
    if kind == "none":
        return {}
    known = {"type", "factor", "original_context_length", "finetuned"}
    if kind not in ("linear", "yarn") or keys - known:
        raise ConfigError(
            f"{file.name} scales its rotary embedding by {kind!r} with {sorted(keys)}, which is "
            "not supported; use the Hugging Face folder of this model"
        )
    scaling: dict[str, Any] = {"rope_type": kind, "factor": file.metadata.real(prefix + "factor")}
    if "original_context_length" in keys:
        original = file.metadata.size(prefix + "original_context_length")
        scaling["original_max_position_embeddings"] = original
    return {"rope_scaling": scaling}


def _llama3_scaling(file: GgufFile, head_dim: int, theta: float) -> dict[str, Any]:
    stored = file.tensors[ROPE_FREQS]
    factor = round(float(stored.raw.max()), 3)  # the divisor of the lowest frequencies
    expected = llama3_factors(head_dim=head_dim, theta=theta, factor=factor)  # [head_dim / 2]
    if stored.raw.shape != expected.shape or not np.allclose(stored.raw, expected, rtol=1e-4):
        raise ConfigError(
            f"{file.name}: {ROPE_FREQS} does not follow the llama 3 rule; "
            "use the Hugging Face folder of this model"
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LOW_FREQ_FACTOR,
        "high_freq_factor": _HIGH_FREQ_FACTOR,
        "original_max_position_embeddings": _ORIGINAL_CONTEXT,
    }


def llama3_factors(*, head_dim: int, theta: float, factor: float) -> RawArray:  # [head_dim / 2]
    """What each rotary frequency is divided by: 1 for fast ones, `factor` for slow ones."""
    frequencies = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    periods = _ORIGINAL_CONTEXT * frequencies / (2 * np.pi)  # within the original context
    smooth = (periods - _LOW_FREQ_FACTOR) / (_HIGH_FREQ_FACTOR - _LOW_FREQ_FACTOR)
    smooth = smooth.clip(0.0, 1.0)
    divisors: RawArray = 1.0 / ((1.0 - smooth) / factor + smooth)
    return divisors


def _dtype(file: GgufFile) -> str:
    """The dtype of the written embedding: as stored, or float32 if it was quantised."""
    names = {"F16": "float16", "BF16": "bfloat16"}
    return names.get(file.tensors["token_embd.weight"].kind, "float32")


def _token_ids(metadata: Metadata) -> dict[str, int]:
    return {
        f"{role}_token_id": metadata.integer(f"tokenizer.ggml.{role}_token_id")
        for role in ("bos", "eos")
        if f"tokenizer.ggml.{role}_token_id" in metadata
    }
