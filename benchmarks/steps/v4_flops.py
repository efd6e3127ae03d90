"""Floating-point operations of DeepSeek-V4: linears, and attention to what a query reads."""

from collections.abc import Mapping

from outrider.bench.offline.v4_bytes import Shape, v4_read_shapes
from outrider.models.deepseek_v4.compression import CompressedBlocks
from outrider.models.deepseek_v4.v4_config import V4Config


def v4_step_flops(config: V4Config, *, tokens: float) -> float:
    """Multiplications and additions of the linears that a step runs."""
    return v4_flops_of(config, v4_read_shapes(config), tokens=tokens)


def v4_flops_of(config: V4Config, shapes: Mapping[str, Shape], *, tokens: float) -> float:
    """Multiplications and additions of these linears."""
    feed, products = config.feed, 0.0
    for name, shape in shapes.items():
        if len(shape) == 2 and not name.endswith("ape"):
            share = feed.routing.top_k / feed.num if ".experts." in name else 1.0
            products += share * shape[0] * shape[1]
    return 2.0 * tokens * products


def v4_prefill_flops(config: V4Config, *, tokens: int) -> float:
    """Multiplications and additions of one prompt; logits are computed for its last token only."""
    attention, attended = config.attention, 0.0  # operations of attention and of the index
    head = 2.0 * config.vocab_size * config.hidden
    wide = attention.heads.heads * attention.heads.head_dim
    index = attention.index
    for kind in attention.layers:
        attended += 4.0 * wide * tokens * min(tokens / 2, attention.window)
        if isinstance(kind, CompressedBlocks):
            entries = tokens / 2 / kind.ratio  # on average
            read = min(entries, index.top_k) if kind.index_width else entries
            attended += 4.0 * wide * tokens * read
            attended += 2.0 * index.heads * kind.index_width * tokens * entries
    return v4_step_flops(config, tokens=tokens) - head * (tokens - 1) + attended


def v4_cache_flops(config: V4Config, *, tokens: float, context: float) -> float:
    """Multiplications and additions of attention and of the index for these query tokens."""
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
