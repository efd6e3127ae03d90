"""Reads the config.json of a head in any known dialect. Unsupported fields are refused by name."""

from collections.abc import Collection
from typing import Any

from outrider.errors import ConfigError
from outrider.models.config_fields import read_object, read_size_or
from outrider.models.dflash.dflash_dialects import is_dflash_config, parse_dflash
from outrider.models.draft_model import AuxLayers
from outrider.models.eagle.head_config import (
    Algorithm,
    AuxNorm,
    AuxStatesConfig,
    Dialect,
    HeadConfig,
    Origin,
    OutputConfig,
)
from outrider.models.eagle.head_fields import (
    dense_layers,
    layer_config,
    made_for,
    read_architectures,
)
from outrider.models.eagle.peagle_fields import (
    is_peagle_config,
    peagle_blocks,
    peagle_dialect,
)
from outrider.models.head_target import HeadTargetConfig
from outrider.models.medusa.medusa_fields import is_medusa_config
from outrider.models.registry import FAMILIES

_ARCHITECTURES: dict[str, tuple[Dialect, Algorithm]] = {
    "LlamaForCausalLMEagle": ("SGLang", "eagle"),
    "Qwen2ForCausalLMEagle": ("SGLang", "eagle"),
    "LlamaForCausalLMEagle3": ("SGLang", "eagle3"),
    "EagleLlamaForCausalLM": ("vLLM", "eagle"),
    "Eagle3LlamaForCausalLM": ("vLLM", "eagle3"),
    "Eagle3DeepseekV2ForCausalLM": ("vLLM", "eagle3"),
    "Eagle3DeepseekV3ForCausalLM": ("vLLM", "eagle3"),
    "DeepseekV3ForCausalLMEagle3": ("SGLang", "eagle3"),
}
_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


def parse_head(
    fields: dict[str, Any],
    names: Collection[str],  # canonical names of its tensors
    target: HeadTargetConfig,
) -> HeadConfig:
    """The head that a config.json describes. Missing fields follow from tensors and target."""
    if is_dflash_config(fields):
        return parse_dflash(fields, names, target)
    dialect, algorithm = _recognise(fields, names)
    layer_fields = _layer_fields(fields, dialect)
    plain = dense_layers(layer_fields, names, target)
    notes: list[str] = []
    if algorithm == "eagle":
        aux = _final_state(plain.block.hidden, has_bias=_has_bias(fields, names))
    else:
        aux = _aux_states(fields, plain.block.hidden, target, notes)
    return HeadConfig(
        aux=aux,
        layer=layer_config(
            layer_fields, plain, names, is_residual_normed=_residual_norm(fields, dialect, notes)
        ),
        output=_output(fields, plain.vocab_size, dialect, notes),
        max_context=plain.max_context,
        origin=Origin(
            algorithm=algorithm, dialect=dialect, made_for=made_for(fields), notes=tuple(notes)
        ),
        blocks=peagle_blocks(fields, plain, target) if algorithm == "peagle" else None,
    )


def is_head_config(fields: dict[str, Any]) -> bool:
    """Whether a config.json is marked as that of a head, not of a whole model."""
    is_named = any(name in _ARCHITECTURES for name in read_architectures(fields))
    is_marked = "speculators_model_type" in fields or fields.get("model_type") == "eagle"
    draft_blocks = (is_dflash_config, is_peagle_config, is_medusa_config)
    return is_named or is_marked or any(is_kind(fields) for is_kind in draft_blocks)


def _recognise(fields: dict[str, Any], names: Collection[str]) -> tuple[Dialect, Algorithm]:
    if is_peagle_config(fields):
        return peagle_dialect(fields), "peagle"
    if "speculators_model_type" in fields:
        kind = fields["speculators_model_type"]
        if kind != "eagle3":
            raise ConfigError(
                f"speculators heads of type {kind} are not supported; use eagle3, peagle, dflash "
                "or dspark"
            )
        return "speculators", "eagle3"
    if fields.get("model_type") == "eagle":
        return "vLLM", "eagle"
    architectures = read_architectures(fields)
    if len(architectures) != 1:
        raise ConfigError(f"config.json must name one architecture, got {architectures}; fix it")
    (architecture,) = architectures
    if architecture in _ARCHITECTURES:
        return _ARCHITECTURES[architecture]
    if "fc.weight" not in names:
        raise ConfigError(
            f"{architecture} without fc.weight is no draft head; use a head, or a whole model "
            "with --draft"
        )
    if architecture not in FAMILIES:
        known = ", ".join((*_ARCHITECTURES, *FAMILIES))
        raise ConfigError(f"heads of architecture {architecture} are not supported; use {known}")
    # SafeAILab configs name the target's architecture; the tensors show the version of EAGLE.
    has_own_norms = {"d2t", "layers.0.hidden_norm.weight"} & set(names)
    return "SafeAILab", "eagle3" if has_own_norms else "eagle"


def _layer_fields(fields: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    """The object of the dialect with the fields of the decoder layer."""
    if dialect == "speculators":
        return read_object(fields, "transformer_layer_config")
    return read_object(fields, "model") or fields


def _has_bias(fields: dict[str, Any], names: Collection[str]) -> bool:
    """Whether `fc` of an EAGLE head has a bias. Without a field, the stored tensors decide."""
    value = fields.get("bias", fields.get("eagle_fc_bias"))
    return "fc.bias" in names if value is None else bool(value)


def _final_state(target_hidden: int, *, has_bias: bool) -> AuxStatesConfig:
    return AuxStatesConfig(
        aux_layers=AuxLayers(final=True),
        target_hidden=target_hidden,
        norm="none",
        is_projected=False,
        has_bias=has_bias,
    )


def _aux_states(
    fields: dict[str, Any], hidden: int, target: HeadTargetConfig, notes: list[str]
) -> AuxStatesConfig:
    """The aux states of EAGLE-3. Their width follows from the config, never from a tensor."""
    target_hidden = read_size_or(fields, "target_hidden_size", hidden)
    nested = read_object(fields, "eagle_config")
    if not nested.get("use_aux_hidden_state", True):
        return _final_state(target_hidden, has_bias=False)
    layers = _capture_layers(fields, nested, target, notes)
    num_states = read_size_or(fields, "num_aux_hidden_states", len(layers))
    if num_states != len(layers):
        raise ConfigError(
            f"config.json sets num_aux_hidden_states to {num_states}, but {len(layers)} layers are "
            f"captured; list as many {_LAYER_IDS}"
        )
    return AuxStatesConfig(
        aux_layers=AuxLayers(layers=layers),
        target_hidden=target_hidden,
        norm=_aux_norm(fields, nested),
        is_projected=True,
        has_bias=False,
    )


def _aux_norm(fields: dict[str, Any], nested: dict[str, Any]) -> AuxNorm:
    is_joint = fields.get("norm_before_fc", nested.get("norm_before_fc"))
    is_each = fields.get("fc_norm", fields.get("use_aux_norm"))
    if is_joint and is_each:
        raise ConfigError("config.json sets both norm_before_fc and fc_norm; keep one of them")
    return "joint" if is_joint else "each" if is_each else "none"


def _capture_layers(
    fields: dict[str, Any], nested: dict[str, Any], target: HeadTargetConfig, notes: list[str]
) -> tuple[int, ...]:
    """The numbers of layers after which the target's states are read.

    The same key has two meanings. At the top level k means "after k layers". In `eagle_config` k
    means "the output of layer k", which is after k + 1 layers. The default is the same in all
    dialects.
    """
    usual = (2, target.num_layers // 2, target.num_layers - 3)
    outer, inner = _layer_ids(fields), _layer_ids(nested)
    inner_layers = tuple(layer + 1 for layer in inner)
    if outer and inner and outer != inner_layers:
        notes.append(
            f"{_LAYER_IDS} {list(outer)} at the top level and {list(inner)} in eagle_config "
            f"mean different layers; used: after {list(outer)}"
        )
    ids, mistaken = (outer, tuple(layer - 1 for layer in usual)) if outer else (inner, usual)
    if ids and ids == mistaken:
        notes.append(
            f"{_LAYER_IDS} {list(ids)} would be the usual layers in the other meaning of that key "
            "(top level: after k layers; eagle_config: output of layer k); if position 0 is "
            "never accepted, they were copied from one place to the other"
        )
    return outer or inner_layers or usual


def _layer_ids(fields: dict[str, Any]) -> tuple[int, ...]:
    ids = fields.get(_LAYER_IDS) or []
    if not isinstance(ids, list) or not all(isinstance(each, int) for each in ids):
        raise ConfigError(f"config.json needs integers in {_LAYER_IDS}, got {ids}; fix the field")
    return tuple(ids)


def _residual_norm(fields: dict[str, Any], dialect: Dialect, notes: list[str]) -> bool:
    if dialect == "speculators" and "norm_before_residual" not in fields:
        notes.append("norm_before_residual is absent: taken as false, as speculators does")
    return bool(fields.get("norm_before_residual", False))


def _output(fields: dict[str, Any], vocab: int, dialect: Dialect, notes: list[str]) -> OutputConfig:
    is_normed = bool(fields.get("norm_output", False))
    if is_normed and dialect == "SGLang":
        notes.append(
            "norm_output hands on the state after the norm; SpecForge trained such heads on the "
            "state before it, so later positions may do worse than in training"
        )
    return OutputConfig(
        vocab=vocab,
        draft_vocab=read_size_or(fields, "draft_vocab_size", vocab),
        is_state_normed=is_normed,
    )
