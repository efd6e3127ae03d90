"""Constant factors and caps of a model: of scores, embeddings, residuals and logits."""

import math
from dataclasses import dataclass
from typing import Any

from outrider.models.config_fields import read_real, read_real_or
from outrider.models.registry import Family
from outrider.ops.attention.attention_rule import NO_CAP


@dataclass(frozen=True, slots=True, kw_only=True)
class Multipliers:
    """Those of a Llama, except for the scale of scores, are the defaults."""

    attention: float  # of the products of queries and keys
    embedding: float = 1.0  # of the embeddings of tokens
    inputs: float = 1.0  # of the input of the first layer, which a request may bring
    residual: float = 1.0  # of what a layer adds to the stream
    logits: float = 1.0
    score_cap: float = NO_CAP  # of attention
    logit_cap: float = NO_CAP


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
        case "gemma":
            return Multipliers(
                attention=read_real_or(fields, "query_pre_attn_scalar", 256.0) ** -0.5,
                embedding=math.sqrt(hidden),
                score_cap=_cap(fields, "attn_logit_softcapping", family.usual_caps[0]),
                logit_cap=_cap(fields, "final_logit_softcapping", family.usual_caps[1]),
            )


def _cap(fields: dict[str, Any], key: str, usual: float) -> float:
    """Zero where there is none: the field is null, or absent in a family without caps."""
    if key not in fields:
        return usual
    return NO_CAP if fields[key] is None else read_real(fields, key)
