"""The least time a decode step can take: its bytes, read once at the measured bandwidth.

Computation is not part of this floor. At large batches a CPU computes for longer than it reads, and
no engine comes near the floor.
"""

import math
from dataclasses import dataclass

from outrider.config.engine_config import Dtype
from outrider.models.decoder_tensors import tensor_shapes
from outrider.models.expert_config import ExpertsConfig, NoExperts
from outrider.models.model_config import ModelConfig
from outrider.models.recurrent.recurrence import Recurrence

_ITEM_BYTES: dict[Dtype, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "packed": 4}
_PACKED_SHARE = 20 / 32  # bytes of a packed weight as Q4_1; the floor knows sizes, not tensors
_SCALE_BYTES = 4  # of an int8 output channel
_EMBEDDING = "model.embed_tokens.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeFloor:
    """The bytes that one decode step of a batch must read."""

    dtype: Dtype
    batch: int
    weight_bytes: int
    kv_bytes: int
    bandwidth: float  # bytes per second

    @property
    def step_s(self) -> float:
        return (self.weight_bytes + self.kv_bytes) / self.bandwidth

    @property
    def tokens_per_s(self) -> float:
        return self.batch / self.step_s


def weight_bytes(config: ModelConfig, dtype: Dtype, *, tokens: float = math.inf) -> int:
    """Bytes of all weights a step reads whole: layers and head, but not an embedding of its own.

    Of the experts it counts those that this many tokens are routed to, on average. int8 applies to
    linears, which then have a scale per output channel; the rest is float32.
    """
    shapes = tensor_shapes(config)
    if not config.is_tied:
        del shapes[_EMBEDDING]  # a step looks up one row of it per token
    of_experts = {name: shape for name, shape in shapes.items() if is_of_expert(name)}
    dense = sum(tensor_bytes(shapes[name], dtype) for name in shapes.keys() - of_experts.keys())
    experts = sum(tensor_bytes(shape, dtype) for shape in of_experts.values())
    return dense + round(experts * selected_share(config.experts, tokens))


def is_of_expert(name: str) -> bool:
    """Whether a tensor belongs to one expert of many."""
    return ".experts." in name


def selected_share(experts: ExpertsConfig | NoExperts, tokens: float) -> float:
    """Mean share of the experts that these tokens are routed to, if all are equally likely."""
    if isinstance(experts, NoExperts):
        return 1.0
    unselected: float = (1.0 - experts.routing.top_k / experts.num) ** tokens
    return 1.0 - unselected


def kv_bytes(config: ModelConfig, dtype: Dtype, *, batch: int, context: float) -> int:
    """Bytes of the KV that a step of a batch reads, with `context` cached tokens per row.

    Recurrent states are included; a step reads and writes them.
    """
    attention, recurrence = config.attention, config.recurrence
    values = seen_tokens(config, context) * attention.vectors * attention.width
    states = 0
    if isinstance(recurrence, Recurrence):
        states = 2 * len(recurrence.layers) * recurrence.state * _ITEM_BYTES["float32"]
    return round(batch * (values * activation_bytes(dtype) + states))


def seen_tokens(config: ModelConfig, context: float) -> float:
    """Tokens whose KV a row attends to, over all layers: in some, only those in their window."""
    return sum(min(context, config.pattern.reach_at(layer)) for layer in config.attending)


def tensor_bytes(shape: tuple[int, ...], dtype: Dtype) -> int:
    """Bytes of one weight as it is stored."""
    if len(shape) == 1:  # a norm or a bias
        return shape[0] * activation_bytes(dtype)
    rows, columns = shape[0], math.prod(shape[1:])
    if dtype == "packed":
        return round(rows * columns * _PACKED_SHARE)
    scales = rows * _SCALE_BYTES if dtype == "int8" else 0
    return rows * columns * _ITEM_BYTES[dtype] + scales


def activation_bytes(dtype: Dtype) -> int:
    """Bytes of one number that is no weight of a linear."""
    return _ITEM_BYTES["float32"] if dtype == "int8" else _ITEM_BYTES[dtype]
