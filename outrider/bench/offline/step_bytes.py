"""Bytes that one step of any target reads."""

from dataclasses import dataclass

from outrider.bench.offline.decode_floor import kv_bytes, weight_bytes
from outrider.bench.offline.v4_bytes import v4_cache_bytes, v4_step_bytes
from outrider.config.engine_config import Dtype
from outrider.models.deepseek_v4.v4_config import V4Config
from outrider.models.model_config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBytes:
    """The bytes that a step reads once."""

    weights: int
    kv: int


def step_bytes(
    config: ModelConfig | V4Config, dtype: Dtype, *, rows: int, nodes: int, context: float
) -> StepBytes:
    """Bytes of a step of `rows` trees of `nodes` query tokens; one node is plain decoding."""
    tokens = rows * nodes
    if isinstance(config, V4Config):
        return StepBytes(
            weights=v4_step_bytes(config, dtype, tokens=tokens),
            kv=v4_cache_bytes(config, dtype, rows=rows, context=context),
        )
    return StepBytes(
        weights=weight_bytes(config, dtype, tokens=tokens),
        kv=kv_bytes(config, dtype, batch=rows, context=context),
    )
