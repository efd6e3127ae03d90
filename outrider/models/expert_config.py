"""The mixture of experts in a config.json: which layers have one, and how tokens are routed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.errors import ConfigError
from outrider.models.config_fields import (
    check_experts,
    read_list,
    read_number_or,
    read_real_or,
    read_size,
    read_size_or,
)
from outrider.models.family import ExpertFamily
from outrider.ops.moe.gate_form import SWIGLU, ExpertGate
from outrider.ops.moe.routing_config import ONE_GROUP, ExpertGroups, RoutingConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """The experts of the layers in `layers`; all other layers are dense."""

    num: int
    intermediate: int
    routing: RoutingConfig
    layers: frozenset[int]
    shared: int = 0  # width of the shared expert, which runs for every token; 0: there is none
    has_bias: bool = False  # a stored bias per expert is added to its score for selection
    has_shared_gate: bool = False  # a gate scales the shared expert of each token
    gate: ExpertGate = SWIGLU
    has_weighted_inputs: bool = False  # weights scale what experts read, not what they return


@dataclass(frozen=True, slots=True)
class NoExperts:
    """Every layer is dense."""


_NUM_DENSE = "first_k_dense_replace"
# Fields of DeepSeek that would change the routing, and the values that are supported.
_V2_ONLY: dict[str, tuple[Any, ...]] = {
    "scoring_func": ("softmax", None),
    "topk_method": ("greedy", "group_limited_greedy", None),
    "norm_topk_prob": (False, None),
    "moe_layer_freq": (1,),
}
_V3_ONLY: dict[str, tuple[Any, ...]] = {
    "scoring_func": ("sigmoid", None),
    "topk_method": ("noaux_tc", None),
    "moe_layer_freq": (1,),
}


def parse_experts(
    fields: Mapping[str, Any], family: ExpertFamily, *, num_layers: int
) -> ExpertsConfig:
    """The mixture of experts that the fields of a config.json describe."""
    num = _number_of_experts(fields, family.counts)
    top_k = read_size(fields, "num_experts_per_tok")
    check_experts(num, num_layers)
    if top_k > num:
        raise ConfigError(
            f"config.json routes a token to {top_k} of {num} experts; fix num_experts_per_tok"
        )
    if family.routing == "llama4":
        return _parse_llama4(fields, family, num=num, top_k=top_k, num_layers=num_layers)
    if family.routing != "softmax":
        return _parse_deepseek(fields, family, num=num, top_k=top_k, num_layers=num_layers)
    is_normed = family.is_always_normed or _is_normed(fields, family)
    return ExpertsConfig(
        num=num,
        intermediate=read_size(fields, family.intermediate),
        routing=RoutingConfig(top_k=top_k, score="softmax", is_normed=is_normed),
        layers=_sparse_layers(fields, num_layers) if family.may_be_dense else _all(num_layers),
        shared=read_size(fields, family.shared) if family.shared else 0,
        has_shared_gate=bool(family.shared),
        gate=_paired_gate(fields) if family.has_pairs else SWIGLU,
    )


def _paired_gate(fields: Mapping[str, Any]) -> ExpertGate:
    """The clipped SwiGLU of gpt-oss."""
    return ExpertGate(
        limit=read_real_or(fields, "swiglu_limit", 7.0),
        alpha=read_real_or(fields, "swiglu_alpha", 1.702),
        shift=1.0,
    )


def _is_normed(fields: Mapping[str, Any], family: ExpertFamily) -> bool:
    value = fields.get("norm_topk_prob")
    return family.is_usually_normed if value is None else bool(value)


def _parse_deepseek(
    fields: Mapping[str, Any], family: ExpertFamily, *, num: int, top_k: int, num_layers: int
) -> ExpertsConfig:
    is_v3 = family.routing == "deepseek-v3"
    _refuse_other_routing(fields, _V3_ONLY if is_v3 else _V2_ONLY)
    intermediate, dense = read_size(fields, family.intermediate), read_number_or(fields, _NUM_DENSE)
    has_groups = is_v3 or fields.get("topk_method") == "group_limited_greedy"
    return ExpertsConfig(
        num=num,
        intermediate=intermediate,
        routing=RoutingConfig(
            top_k=top_k,
            score="sigmoid" if is_v3 else "softmax",
            is_normed=is_v3 and bool(fields.get("norm_topk_prob", True)),
            scale=read_real_or(fields, "routed_scaling_factor", family.usual_scale),
            groups=_groups(fields, family, num, top_k) if has_groups else ONE_GROUP,
        ),
        layers=frozenset(range(dense, num_layers)),
        shared=intermediate * read_number_or(fields, "n_shared_experts"),
        has_bias=is_v3,
    )


def _parse_llama4(
    fields: Mapping[str, Any], family: ExpertFamily, *, num: int, top_k: int, num_layers: int
) -> ExpertsConfig:
    every = read_size_or(fields, "interleave_moe_layer_step", 1)
    layers: Sequence[Any] = range(every - 1, num_layers, every)
    if fields.get("moe_layers") is not None:
        layers = read_list(fields, "moe_layers")
    if any(layer not in range(num_layers) for layer in layers):
        raise ConfigError(
            f"config.json needs layers below {num_layers} in moe_layers, got {layers}; fix it"
        )
    intermediate = read_size(fields, family.intermediate)
    return ExpertsConfig(
        num=num,
        intermediate=intermediate,
        routing=RoutingConfig(top_k=top_k, score="sigmoid", is_normed=False),
        layers=frozenset(layers),
        shared=intermediate,
        has_weighted_inputs=True,
    )


def _refuse_other_routing(fields: Mapping[str, Any], allowed: dict[str, tuple[Any, ...]]) -> None:
    for key, values in allowed.items():
        if key in fields and fields[key] not in values:
            raise ConfigError(
                f"config.json sets {key} to {fields[key]}, but only {values[0]} is supported here; "
                "use another model"
            )


def _groups(fields: Mapping[str, Any], family: ExpertFamily, num: int, top_k: int) -> ExpertGroups:
    usual, usually_selected = family.usual_groups
    groups = read_size_or(fields, "n_group", usual)
    if groups == 1:
        return ONE_GROUP
    selected = read_size_or(fields, "topk_group", usually_selected)
    each, scored = num // groups, 2 if family.routing == "deepseek-v3" else 1
    if num % groups or selected > groups or each < scored or selected * each < top_k:
        raise ConfigError(
            f"config.json selects {top_k} of {num} experts in {selected} of {groups} groups, "
            "which does not work out; fix n_group or topk_group"
        )
    return ExpertGroups(num=groups, num_selected=selected, num_scored=scored)


def _number_of_experts(fields: Mapping[str, Any], spellings: tuple[str, ...]) -> int:
    stored = {key: read_size(fields, key) for key in spellings if key in fields}
    if len(set(stored.values())) != 1:
        raise ConfigError(
            f"config.json must say once how many experts there are, got {stored or 'nothing'}; "
            f"set {spellings[0]}"
        )
    return stored.popitem()[1]


def _sparse_layers(fields: Mapping[str, Any], num_layers: int) -> frozenset[int]:
    """Every n-th layer, except those that are listed as dense."""
    every = read_size(fields, "decoder_sparse_step") if "decoder_sparse_step" in fields else 1
    dense = fields.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(each in range(num_layers) for each in dense):
        raise ConfigError(
            f"config.json needs layers below {num_layers} in mlp_only_layers, got {dense}; fix it"
        )
    return frozenset(layer for layer in range(every - 1, num_layers, every) if layer not in dense)


def _all(num_layers: int) -> frozenset[int]:
    return frozenset(range(num_layers))
