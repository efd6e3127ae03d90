"""What a step of DeepSeek-V4 must read: of experts those that are asked, of the past a window and
the entries that are chosen, or all that there are.
"""

from collections.abc import Mapping

from outrider.bench.offline.decode_floor import activation_bytes, tensor_bytes
from outrider.config.engine_config import Dtype
from outrider.models.deepseek_v4.compression import CompressedBlocks
from outrider.models.deepseek_v4.v4_config import V4Config
from outrider.models.deepseek_v4.v4_tensors import EMBEDDING, TABLE, tensor_shapes

_FLOAT32 = 4  # bytes of what is computed with in float32
_WIDE = ("_fn", "_base", "_scale", "attn_sink", "ape", "gate.bias")

Shape = tuple[int, ...]


def v4_step_bytes(config: V4Config, dtype: Dtype, *, tokens: float) -> int:
    """Bytes of weights that a step of that many query tokens reads, on average over routings."""
    return v4_bytes_of(config, _read_shapes(config), dtype, tokens=tokens)


def v4_bytes_of(
    config: V4Config, shapes: Mapping[str, Shape], dtype: Dtype, *, tokens: float
) -> int:
    """The same of some tensors."""
    feed, total = config.feed, 0.0
    asked = 1.0 - (1.0 - feed.routing.top_k / feed.num) ** tokens  # chance that an expert is
    for name, shape in shapes.items():
        share = asked if ".experts." in name else 1.0
        total += share * _bytes(name, shape, dtype)
    return round(total)


def v4_held_bytes(config: V4Config, dtype: Dtype) -> int:
    """Bytes of all weights."""
    return sum(_bytes(name, shape, dtype) for name, shape in tensor_shapes(config).items())


def v4_step_flops(config: V4Config, *, tokens: float) -> float:
    """Multiplications and additions of the maps."""
    return v4_flops_of(config, _read_shapes(config), tokens=tokens)


def v4_flops_of(config: V4Config, shapes: Mapping[str, Shape], *, tokens: float) -> float:
    """The same of some tensors."""
    feed, products = config.feed, 0.0
    for name, shape in shapes.items():
        if len(shape) == 2 and not name.endswith("ape"):
            share = feed.routing.top_k / feed.num if ".experts." in name else 1.0
            products += share * shape[0] * shape[1]
    return 2.0 * tokens * products


def v4_prefill_flops(config: V4Config, *, tokens: int) -> float:
    """Of one prompt: the maps, with logits of the last token alone, and attention to the past."""
    attention, pairs = config.attention, 0.0  # of a query and a vector it reads, or a key it meets
    head = 2.0 * config.vocab_size * config.hidden
    wide = attention.heads.heads * attention.heads.head_dim
    index = attention.index
    for kind in attention.layers:
        pairs += 4.0 * wide * tokens * min(tokens / 2, attention.window)
        if isinstance(kind, CompressedBlocks):
            entries = tokens / 2 / kind.ratio  # on average
            read = min(entries, index.top_k) if kind.index_width else entries
            pairs += 4.0 * wide * tokens * read
            pairs += 2.0 * index.heads * kind.index_width * tokens * entries
    return v4_step_flops(config, tokens=tokens) - head * (tokens - 1) + pairs


def v4_cache_bytes(config: V4Config, dtype: Dtype, *, rows: int, context: float) -> int:
    """Bytes of windows, entries and index keys that rows of that length read."""
    attention, channels = config.attention, 0.0
    width, top_k = attention.heads.head_dim, attention.index.top_k
    for kind in attention.layers:
        channels += min(context, attention.window) * width
        if isinstance(kind, CompressedBlocks):
            entries = context // kind.ratio
            channels += entries * kind.index_width
            channels += (min(entries, top_k) if kind.index_width else entries) * width
    return round(rows * channels * activation_bytes(dtype))


def v4_cache_flops(config: V4Config, *, tokens: float, context: float) -> float:
    """Of query tokens with what they read, and of index queries with the keys they meet."""
    attention, flops = config.attention, 0.0
    wide = attention.heads.heads * attention.heads.head_dim
    index = attention.index
    for kind in attention.layers:
        flops += 4.0 * wide * min(context, attention.window)
        if isinstance(kind, CompressedBlocks):
            entries = context // kind.ratio
            flops += 4.0 * wide * (min(entries, index.top_k) if kind.index_width else entries)
            flops += 2.0 * index.heads * kind.index_width * entries
    return tokens * flops


def _read_shapes(config: V4Config) -> dict[str, Shape]:
    """Of embedding and tables a step looks up single rows."""
    shapes = tensor_shapes(config)
    del shapes[EMBEDDING]
    return {name: shape for name, shape in shapes.items() if not name.endswith(TABLE)}


def _bytes(name: str, shape: Shape, dtype: Dtype) -> int:
    if name.endswith(_WIDE):
        size = 1
        for axis in shape:
            size *= axis
        return size * _FLOAT32
    return tensor_bytes(shape, dtype)
