"""Which tensors of a random model are quantised, and how many bytes that saves."""

import math

from benchmarks.steps.step_args import BodyQuantization
from outrider.bench.offline.decode_floor import is_of_expert, selected_share, tensor_bytes
from outrider.config.engine_config import Dtype
from outrider.models.decoder_tensors import tensor_shapes
from outrider.models.deepseek_v4.v4_config import V4Config
from outrider.models.deepseek_v4.v4_tensors import v4_tensor_shapes
from outrider.models.model_config import ModelConfig
from outrider.models.quantised.quantise_at_load import is_projection
from outrider.ops.linear.quantised_weight import CodeKind

# Bytes of a code with its share of a scale: float32 for 128 inputs; float16 and a zero point for
# 128; one byte for 32.
_CODE_BYTES: dict[CodeKind, float] = {
    "e4m3": 1 + 4 / 128,
    "int4": 1 / 2 + 4 / 128,
    "e2m1": 1 / 2 + 1 / 32,
}
_OF_V4 = ("wq_a.weight", "wq_b.weight", "attn.wkv.weight", "wo_b.weight")


def kind_of(name: str, quantization: BodyQuantization) -> CodeKind | None:
    """The codes of the tensor of this name; None if it stays as it is."""
    if quantization == "none" or not (is_projection(name) or name.endswith(_OF_V4)):
        return None
    if quantization == "mxfp4" and is_of_expert(name):
        return "e2m1"
    return "int4" if quantization == "int4" else "e4m3"


def saved_bytes(
    config: ModelConfig | V4Config,
    dtype: Dtype,
    quantization: BodyQuantization,
    *,
    tokens: float = math.inf,
) -> int:
    """Bytes that a step of so many tokens need not read, of the weights that are quantised."""
    shapes = v4_tensor_shapes(config) if isinstance(config, V4Config) else tensor_shapes(config)
    share, saved = _expert_share(config, tokens), 0.0
    for name, shape in shapes.items():
        kind = kind_of(name, quantization)
        if kind is not None:
            less = tensor_bytes(shape, dtype) - math.prod(shape) * _CODE_BYTES[kind]
            saved += less * (share if is_of_expert(name) else 1.0)
    return round(saved)


def _expert_share(config: ModelConfig | V4Config, tokens: float) -> float:
    if isinstance(config, ModelConfig):
        return selected_share(config.experts, tokens)
    unselected: float = (1.0 - config.feed.routing.top_k / config.feed.num) ** tokens
    return 1.0 - unselected
