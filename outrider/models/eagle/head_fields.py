"""Fields of a head's config.json that all kinds of heads read alike."""

from collections.abc import Collection
from typing import Any

from outrider.errors import ConfigError
from outrider.models.config_fields import read_object, read_size
from outrider.models.eagle.head_config import HeadLayerConfig
from outrider.models.family import Family
from outrider.models.head_target import HeadTargetConfig
from outrider.models.latent_tensors import KV_A
from outrider.models.model_config import LatentConfig, ModelConfig, parse_config, parse_decoder

_QKV = ("q_proj", "k_proj", "v_proj")
# One token, by the names of several projects.
_MASK_KEYS = ("mask_token_id", "pard_token", "ptd_token_id", "dspark_noise_token_id")
# Architectures whose layers have latents (MLA). Other heads may have them, too.
_LATENT_ARCHITECTURES = (
    "Eagle3DeepseekV2ForCausalLM",
    "Eagle3DeepseekV3ForCausalLM",
    "DeepseekV3ForCausalLMEagle3",
    "DeepseekDFlashDraftModel",
    "K3DSparkModel",
)
# Fields that change what such layers compute.
_NO_LATENT_OPTIONS = ("mla_use_nope", "mla_use_output_gate", "mla_use_qk_norm")
# A decoder with latents whose layers are all dense, whatever its config says of experts.
_LATENT_LAYERS = Family(name="heads with latents", has_latents=True)


def read_architectures(fields: dict[str, Any]) -> list[str]:
    """All architectures that a config.json names."""
    names = fields.get("architectures")
    return [str(name) for name in names] if isinstance(names, list) else []


def made_for(fields: dict[str, Any]) -> str:
    """The target that a head names, or ""."""
    verifier = read_object(read_object(fields, "speculators_config"), "verifier")
    return str(verifier.get("name_or_path") or "")


def names_a_mask(fields: dict[str, Any]) -> bool:
    """Whether a config.json names a token for masks."""
    return any(fields.get(key) is not None for key in _MASK_KEYS)


def read_mask_token(fields: dict[str, Any], vocab: int) -> int:
    """The token that stands for a mask, below the size of a vocabulary."""
    key = next((key for key in _MASK_KEYS if fields.get(key) is not None), _MASK_KEYS[0])
    token = fields.get(key)
    if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab:
        raise ConfigError(
            f"config.json sets {key} to {token}; name the token below {vocab} that stood for "
            "masks in training"
        )
    return token


def dense_layers(
    fields: dict[str, Any],
    names: Collection[str],  # canonical names of the tensors
    target: HeadTargetConfig,
) -> ModelConfig:
    """The decoder layers: those of a Llama, perhaps with latents instead of keys and values.

    Other fields of heads are read elsewhere.
    """
    if fields.get("logit_scale") not in (None, 1, 1.0):
        raise ConfigError("config.json sets logit_scale, which is not supported; use another head")
    default = {"max_position_embeddings": target.max_context, "vocab_size": target.vocab_size}
    # Of the slots of a block; heads of blocks read it themselves.
    fields = {key: value for key, value in fields.items() if key != "is_causal"}
    if _has_latents(fields, names):
        return _latent_layers(default | fields)
    as_llama = {"architectures": ["LlamaForCausalLM"], "attention_bias": False}
    return parse_config(default | fields | as_llama | _windows(fields))


def _has_latents(fields: dict[str, Any], names: Collection[str]) -> bool:
    """By the architecture or the tensors: configs that copy the target's may have other sizes."""
    is_named = any(name in _LATENT_ARCHITECTURES for name in read_architectures(fields))
    return is_named or any(name.endswith(KV_A) for name in names)


def _latent_layers(fields: dict[str, Any]) -> ModelConfig:
    for key in _NO_LATENT_OPTIONS:
        if fields.get(key):
            raise ConfigError(f"config.json sets {key}, which is not supported; use another head")
    return parse_decoder(fields | _windows(fields), _LATENT_LAYERS)  # refuses windows


def _windows(fields: dict[str, Any]) -> dict[str, Any]:
    """The list of layer types that `sliding_window` means. A Llama would ignore it."""
    has_window = fields.get("sliding_window") is not None and fields.get("use_sliding_window", True)
    if not has_window or fields.get("layer_types"):
        return {}
    return {"layer_types": ["sliding_attention"] * read_size(fields, "num_hidden_layers")}


def layer_config(
    fields: dict[str, Any],
    plain: ModelConfig,
    names: Collection[str],  # canonical names of the tensors
    *,
    is_residual_normed: bool,
) -> HeadLayerConfig:
    """What every decoder layer of a head is like."""
    return HeadLayerConfig(
        block=plain.block,
        attention=plain.attention,
        rope=plain.rope,
        windows=plain.pattern.windows,
        biased=_biased(fields),
        has_head_norm=not isinstance(plain.attention, LatentConfig)
        and any(name.endswith(("q_norm.weight", "k_norm.weight")) for name in names),
        is_residual_normed=is_residual_normed,
    )


def _biased(fields: dict[str, Any]) -> tuple[str, ...]:
    if fields.get("attention_bias"):
        return (*_QKV, "o_proj")
    is_qwen2 = "Qwen2ForCausalLMEagle" in read_architectures(fields)
    return _QKV if fields.get("qkv_bias", is_qwen2) else ()
