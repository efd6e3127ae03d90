"""The softmax over one block of keys and values, for decode rows and for chunks of prompts.

Both kernels read keys in the same blocks, begin each split anew and merge splits in order
(`splits_triton.py`). So a token has the same bits in a chunk and as a decode row.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from outrider.ops.attention.attention_rule import AttentionRule
from outrider.ops.attention.kv_codes_triton import widened

LOG2_E = 1.4426950408889634

_LONGEST = tl.constexpr(1 << 30)  # no text is longer


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreFactors:
    """An `AttentionRule` as kernels take it. Their softmax is in base 2."""

    inner: float  # before the hyperbolic tangent
    scale: float
    window: int  # 0: none; negative: an attention chunk
    is_capped: bool


def score_factors(rule: AttentionRule) -> ScoreFactors:
    window = rule.signed_window if rule.has_window or rule.has_attention_chunk else 0
    if not rule.is_capped:
        return ScoreFactors(inner=0.0, scale=rule.scale * LOG2_E, window=window, is_capped=False)
    return ScoreFactors(
        inner=rule.scale / rule.soft_cap * 2.0 * LOG2_E,
        scale=rule.soft_cap * LOG2_E,
        window=window,
        is_capped=True,
    )


def block_keys(head_dim: int, dtype: torch.dtype) -> int:
    """Keys of a block. They decide bits, so they depend on the model only."""
    if dtype == torch.float32:  # no tensor cores: operands are held in registers
        return 32
    return 64 if head_dim <= 128 else 32


@triton.jit
def load_block(
    keys, slots, wanted,
    TYPE: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """The keys and the values at these slots, [keys, channels] both, in the type of queries."""
    column = tl.arange(0, DIM)
    source = keys + slots[:, None] * (2 * KV_HEADS * HEAD_DIM) + column[None, :]
    inside = wanted & (column < HEAD_DIM)[None, :]
    key = widened(tl.load(source, mask=inside, other=0.0), TYPE)
    value = tl.load(source + KV_HEADS * HEAD_DIM, mask=inside, other=0.0)
    return key, widened(value, TYPE)


@triton.jit
def oldest_seen(limit, WINDOW: tl.constexpr):
    """The position of the oldest key that rows with this limit see; below 0, they see them all.

    WINDOW is the newest keys or, if it is negative, the size of an attention chunk.
    """
    oldest = limit - WINDOW
    if WINDOW < 0:
        oldest = tl.maximum(limit - 1, 0) // (-WINDOW) * (-WINDOW)
    return oldest


@triton.jit
def is_seen_by(position, limit, WINDOW: tl.constexpr):  # [keys], [rows] -> [rows, keys]
    """Which keys each row sees: those before its limit, and of these those in its window."""
    is_seen = position[None, :] < limit[:, None]
    if WINDOW != 0:
        is_seen = is_seen & (position[None, :] >= oldest_seen(limit, WINDOW)[:, None])
    return is_seen


@triton.jit
def first_block(limit, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr):  # limit [rows]
    """Where the first block begins that some row sees. Rows with limit 0 see nothing.

    The blocks before it are masked completely, so leaving them out changes no bit.
    """
    shortest = tl.min(tl.where(limit > 0, limit, _LONGEST), 0)
    return tl.maximum(oldest_seen(shortest, WINDOW), 0) // BLOCK_N * BLOCK_N


@triton.jit
def capped(score, inner, CAPPED: tl.constexpr):
    """The hyperbolic tangent of score * inner / (2 log2(e)), or the score itself."""
    if CAPPED:
        score = 1.0 - 2.0 / (1.0 + tl.exp2(score * inner))
    return score


@triton.jit
def add_block(running_max, sums, acc, score, value, scale):
    """Add a block of scores and values to the running softmax, which is in base 2.

    Weights are summed per place in the block, and over places at the end: this needs no barrier.
    """
    new_max = tl.maximum(running_max, tl.max(score, 1) * scale)
    weight = tl.exp2(tl.fma(score, scale, -new_max[:, None]))
    rescale = tl.exp2(running_max - new_max)
    sums = sums * rescale[:, None] + weight
    acc = tl.dot(weight.to(value.dtype), value, acc * rescale[:, None], input_precision="ieee")
    return new_max, sums, acc


@triton.jit
def finished(acc, COMPILED: tl.constexpr):
    """The sums of the last product, complete.

    Call it before a branch reads them: Triton 3.6 does not wait for products that only a branch
    reads, and ptxas then runs every product of the kernel alone.
    """
    if COMPILED:
        acc = tl.inline_asm_elementwise("", "=r,0", [acc], tl.float32, is_pure=True, pack=1)
    return acc


@triton.jit
def sum_places(sums, IS_SHARED: tl.constexpr):  # [rows, places] float32 -> [rows]
    """The sum of every row, by pairs: of both halves, then of neighbours, and so on.

    Each addition has two operands, so no layout of threads changes the order. IS_SHARED: several
    warps hold a row; they exchange their last 4 sums once, not pair by pair.
    """
    ROWS: tl.constexpr = sums.shape[0]
    PLACES: tl.constexpr = sums.shape[1]
    sums = tl.sum(tl.reshape(sums, (ROWS, 2, PLACES // 2)), axis=1)
    for level in tl.static_range(1, 16):
        if IS_SHARED and PLACES >> level == 4:
            sums = tl.gather(sums, tl.broadcast_to(tl.arange(0, 4)[None, :], (ROWS, 4)), 1)
        if PLACES >> level > 1:
            sums = tl.sum(tl.reshape(sums, (ROWS, PLACES >> level + 1, 2)), axis=2)
    return tl.reshape(sums, (ROWS,))
