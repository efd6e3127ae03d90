"""Constant factors and caps of a model: of scores, embeddings, residuals and logits."""

import math
from dataclasses import dataclass
from typing import Any

from outrider.models.config_fields import read_real, read_real_or, read_size, read_size_or
from outrider.models.family import Family
from outrider.models.rope_scaling import rope_settings
from outrider.ops.attention.attention_rule import NO_CAP

GROWTH_FIELD = "llama_4_scaling_beta"  # among the rope fields of Ministral-3


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreGrowth:
    """Scores grow with the logarithm of the query's position (temperature tuning)."""

    factor: float  # of the logarithm; 0: they do not grow
    interval: int  # positions after which they grow
    first: int  # added to positions
    is_without_rope: bool  # in layers without rope alone; else in all


NO_GROWTH = ScoreGrowth(factor=0.0, interval=1, first=0, is_without_rope=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Multipliers:
    """Those of a Llama, except for the scale of scores, are the defaults."""

    attention: float  # of the products of queries and keys
    embedding: float = 1.0  # of the embeddings of tokens
    inputs: float = 1.0  # of the input of the first layer, which a request may bring
    residual: float = 1.0  # of what a layer adds to the stream
    logits: float = 1.0
    qkv_limit: float = NO_CAP  # queries, keys and values are clamped to it before rotation
    score_cap: float = NO_CAP  # of attention
    logit_cap: float = NO_CAP
    score_growth: ScoreGrowth = NO_GROWTH


def parse_multipliers(
    fields: dict[str, Any], family: Family, *, head_dim: int, hidden: int
) -> Multipliers:
    """Absent fields mean the same as in transformers; null means no cap."""
    match family.multipliers:
        case "none":
            return Multipliers(attention=head_dim**-0.5)
        case "cohere":
            return Multipliers(
                attention=head_dim**-0.5, logits=read_real_or(fields, "logit_scale", 0.0625)
            )
        case "granite":
            return Multipliers(
                attention=read_real_or(fields, "attention_multiplier", 1.0),
                inputs=read_real_or(fields, "embedding_multiplier", 1.0),
                residual=read_real_or(fields, "residual_multiplier", 1.0),
                logits=1.0 / read_real_or(fields, "logits_scaling", 1.0),
            )
        case "llama4":
            return Multipliers(attention=head_dim**-0.5, score_growth=_llama4_growth(fields))
        case "ministral3":
            growth = _ministral3_growth(fields, family)
            return Multipliers(attention=head_dim**-0.5, score_growth=growth)
        case "olmo":
            return Multipliers(
                attention=head_dim**-0.5, qkv_limit=_cap(fields, "clip_qkv", usual=NO_CAP)
            )
        case "gemma":
            return Multipliers(
                attention=read_real_or(fields, "query_pre_attn_scalar", 256.0) ** -0.5,
                embedding=math.sqrt(hidden),
                score_cap=_cap(fields, "attn_logit_softcapping", family.usual_caps[0]),
                logit_cap=_cap(fields, "final_logit_softcapping", family.usual_caps[1]),
            )


def _llama4_growth(fields: dict[str, Any]) -> ScoreGrowth:
    if not fields.get("attn_temperature_tuning", True):
        return NO_GROWTH
    return ScoreGrowth(
        factor=read_real_or(fields, "attn_scale", 0.1),
        interval=read_size_or(fields, "floor_scale", 8192),
        first=1,
        is_without_rope=True,
    )


def _ministral3_growth(fields: dict[str, Any], family: Family) -> ScoreGrowth:
    rope = rope_settings(fields) or dict(family.ropes.usual_scaling)
    if not rope.get(GROWTH_FIELD):
        return NO_GROWTH
    return ScoreGrowth(
        factor=read_real(rope, GROWTH_FIELD),
        interval=read_size(rope, "original_max_position_embeddings"),
        first=0,
        is_without_rope=False,
    )


def _cap(fields: dict[str, Any], key: str, usual: float) -> float:
    """Zero where there is none: the field is null, or absent in a family without caps."""
    if key not in fields:
        return usual
    return NO_CAP if fields[key] is None else read_real(fields, key)
