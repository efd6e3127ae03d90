"""Bytes of DeepSeek-V4 that a step reads: weights, and entries of the cache.

Of the experts a step reads those that its tokens are routed to. Of the cache it reads the sliding
window and the compressed entries: the selected ones where the layer has an index, else all.
"""

import math
from collections.abc import Mapping

from outrider.bench.offline.decode_floor import activation_bytes, tensor_bytes
from outrider.config.engine_config import Dtype
from outrider.models.deepseek_v4.compression import CompressedBlocks
from outrider.models.deepseek_v4.v4_config import V4Config
from outrider.models.deepseek_v4.v4_tensors import EMBEDDING, TABLE, v4_tensor_shapes

_FLOAT32_BYTES = 4
_FLOAT32_TENSORS = ("_fn", "_base", "_scale", "attn_sink", "ape", "gate.bias")  # ends of names

Shape = tuple[int, ...]


def v4_step_bytes(config: V4Config, dtype: Dtype, *, tokens: float) -> int:
    """Bytes of weights that a step of that many query tokens reads, on average over routings."""
    return v4_bytes_of(config, v4_read_shapes(config), dtype, tokens=tokens)


def v4_bytes_of(
    config: V4Config, shapes: Mapping[str, Shape], dtype: Dtype, *, tokens: float
) -> int:
    """Bytes of these tensors that a step reads, on average over routings."""
    feed, total = config.feed, 0.0
    expert_share = 1.0 - (1.0 - feed.routing.top_k / feed.num) ** tokens  # that are selected
    for name, shape in shapes.items():
        share = expert_share if ".experts." in name else 1.0
        total += share * _bytes(name, shape, dtype)
    return round(total)


def v4_held_bytes(config: V4Config, dtype: Dtype) -> int:
    """Bytes of all weights."""
    return sum(_bytes(name, shape, dtype) for name, shape in v4_tensor_shapes(config).items())


def v4_cache_bytes(config: V4Config, dtype: Dtype, *, rows: int, context: float) -> int:
    """Bytes of sliding windows, compressed entries and index keys that rows of that length read."""
    attention, channels = config.attention, 0.0
    width, top_k = attention.heads.head_dim, attention.index.top_k
    for kind in attention.layers:
        channels += min(context, attention.window) * width
        if isinstance(kind, CompressedBlocks):
            entries = context // kind.ratio
            channels += entries * kind.index_width
            channels += (min(entries, top_k) if kind.index_width else entries) * width
    return round(rows * channels * activation_bytes(dtype))


def v4_read_shapes(config: V4Config) -> dict[str, Shape]:
    """Tensors that a step reads whole: not the embedding and the tables, of which it reads rows."""
    shapes = v4_tensor_shapes(config)
    del shapes[EMBEDDING]
    return {name: shape for name, shape in shapes.items() if not name.endswith(TABLE)}


def _bytes(name: str, shape: Shape, dtype: Dtype) -> int:
    if name.endswith(_FLOAT32_TENSORS):
        return math.prod(shape) * _FLOAT32_BYTES
    return tensor_bytes(shape, dtype)
