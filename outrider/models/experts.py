"""What config.json says about a mixture of experts: which layers have one, and who is asked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from outrider.errors import ConfigError
from outrider.models.registry import ExpertFamily

Score = Literal["softmax", "sigmoid", "sqrtsoftplus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertGroups:
    """Experts come in equal groups, and only the best groups are asked.

    A group is as good as the sum of its `judged` best experts.
    """

    num: int
    kept: int
    judged: int


ONE_GROUP = ExpertGroups(num=1, kept=1, judged=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingLaw:
    """How the scores of a token become its experts and their weights."""

    top_k: int  # experts per token
    score: Score
    is_normed: bool  # the weights of a token sum to one before they are scaled
    scale: float = 1.0
    groups: ExpertGroups = ONE_GROUP


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """The experts of a layer; `layers` have them, the others are dense."""

    num: int
    intermediate: int
    law: RoutingLaw
    layers: frozenset[int]


@dataclass(frozen=True, slots=True)
class NoExperts:
    """Every layer is dense."""


def parse_experts(
    fields: Mapping[str, Any], family: ExpertFamily, *, num_layers: int
) -> ExpertsConfig:
    """The mixture of experts that the fields of a config.json describe."""
    num = _number_of_experts(fields, family.counts)
    top_k = _positive(fields, "num_experts_per_tok")
    if top_k > num:
        raise ConfigError(
            f"config.json asks {top_k} of {num} experts per token; fix num_experts_per_tok"
        )
    is_normed = family.is_always_normed or bool(fields.get("norm_topk_prob", False))
    return ExpertsConfig(
        num=num,
        intermediate=_positive(fields, family.intermediate),
        law=RoutingLaw(top_k=top_k, score="softmax", is_normed=is_normed),
        layers=_sparse_layers(fields, num_layers) if family.may_be_dense else _all(num_layers),
    )


def _number_of_experts(fields: Mapping[str, Any], spellings: tuple[str, ...]) -> int:
    stored = {key: _positive(fields, key) for key in spellings if key in fields}
    if len(set(stored.values())) != 1:
        raise ConfigError(
            f"config.json must say once how many experts there are, got {stored or 'nothing'}; "
            f"set {spellings[0]}"
        )
    return stored.popitem()[1]


def _sparse_layers(fields: Mapping[str, Any], num_layers: int) -> frozenset[int]:
    """Every n-th layer, except those that are listed as dense."""
    every = _positive(fields, "decoder_sparse_step") if "decoder_sparse_step" in fields else 1
    dense = fields.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not set(dense) <= _all(num_layers):
        raise ConfigError(
            f"config.json needs layers below {num_layers} in mlp_only_layers, got {dense}; fix it"
        )
    return frozenset(layer for layer in range(every - 1, num_layers, every) if layer not in dense)


def _all(num_layers: int) -> frozenset[int]:
    return frozenset(range(num_layers))


def _positive(fields: Mapping[str, Any], key: str) -> int:
    value = fields.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"config.json needs a positive integer {key}, got {value}; fix the field")
    return value
