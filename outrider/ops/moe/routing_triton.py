"""Routing: the kernel of `route_reference`; and blocks of tokens that are routed to one expert, for
the grouped products of `experts_triton.py`.

A pair is a token and one of its experts: pair p is expert p % top_k of token p // top_k. Experts
and pairs are int32; padding is routed to expert `num_experts`, whose pairs are in no block.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.moe.routing import Routing
from outrider.ops.moe.routing_config import RoutingConfig
from outrider.ops.sampling.sortable_floats_triton import LOWEST_KEY, id_of, key_of, key_value

_TINY = tl.constexpr(1e-20)  # as in `weigh_experts`
_SCORES = {"softmax": 0, "sigmoid": 1, "sqrtsoftplus": 2}
# Most pairs that one program counts at once; more are counted by a launch before.
_SPAN = 1024
_WARP = 32


@dataclass(frozen=True, slots=True)
class ExpertBlocks:
    """Pairs sorted by expert. Each expert starts a new block of `rows.shape[1]` pairs."""

    rows: torch.Tensor  # [blocks, block_rows] int32 pair; num_pairs where there is none
    owners: torch.Tensor  # [blocks] int32 expert; -1 past the last used block


@triton.jit
def _keep_best_groups(
    keys,
    CHANNELS: tl.constexpr,
    GROUPS: tl.constexpr,
    NUM_SELECTED: tl.constexpr,
    NUM_SCORED: tl.constexpr,
):
    """The keys, with the lowest key for experts of groups that are not among the best."""
    grouped = tl.reshape(keys, (GROUPS, CHANNELS // GROUPS))
    left, group_score = grouped, tl.zeros([GROUPS], tl.float32)
    for _ in tl.static_range(NUM_SCORED):
        best = tl.max(left, 1)
        group_score += key_value(best)
        left = tl.where(left == best[:, None], LOWEST_KEY, left)
    group_keys = key_of(group_score, tl.arange(0, GROUPS))
    remaining = group_keys
    for _ in tl.static_range(NUM_SELECTED):
        remaining = tl.where(remaining == tl.max(remaining, 0), LOWEST_KEY, remaining)
    is_selected = remaining != group_keys
    return tl.reshape(tl.where(is_selected[:, None], grouped, LOWEST_KEY), (CHANNELS,))


@triton.jit(do_not_specialize=["page_size"], do_not_specialize_on_alignment=["slots"])
def _route_kernel(
    logits,  # [n, num_experts]
    bias,  # [num_experts] float32
    slots,  # [n] int64
    experts,  # [n, TOP_K] int32
    weights,  # [n, TOP_K] float32
    num_experts,
    stride,
    page_size,
    scale,
    TOP_K: tl.constexpr,
    CHANNELS: tl.constexpr,
    SCORE: tl.constexpr,
    IS_NORMED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    GROUPS: tl.constexpr,
    NUM_SELECTED: tl.constexpr,
    NUM_SCORED: tl.constexpr,
    PDL: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, CHANNELS)
    is_expert = channel < num_experts
    overlap.begin(PDL)
    is_padding = tl.load(slots + token) < page_size
    z = tl.load(logits + token * stride + channel, mask=is_expert, other=float("-inf")).to(
        tl.float32
    )
    if SCORE == 0:
        score = tl.exp(z - tl.max(z, 0))
        if HAS_BIAS or GROUPS > 1 or not IS_NORMED:
            score = score / tl.sum(score, 0)
    elif SCORE == 1:
        score = 1.0 / (1.0 + tl.exp(-z))
    else:
        # Past 20 a softplus is its argument, as torch has it.
        score = tl.sqrt(tl.where(z > 20.0, z, tl.log(1.0 + tl.exp(tl.minimum(z, 20.0)))))
    selection_score = score
    if HAS_BIAS:
        selection_score += tl.load(bias + channel, mask=is_expert, other=0.0)
    elif SCORE <= 1 and GROUPS == 1:
        selection_score = z  # the same order, without the rounding of scores
    keys = key_of(tl.where(is_expert, selection_score, float("-inf")), channel)
    if GROUPS > 1:
        keys = _keep_best_groups(keys, CHANNELS, GROUPS, NUM_SELECTED, NUM_SCORED)
    if IS_NORMED:
        left = keys
        for _ in tl.static_range(TOP_K):
            left = tl.where(left == tl.max(left, 0), LOWEST_KEY, left)
        scale = scale / (tl.sum(tl.where(left != keys, score, 0.0), 0) + _TINY)
    for place in tl.static_range(TOP_K):
        best = tl.max(keys, 0)
        weight = tl.sum(tl.where(keys == best, score, 0.0), 0) * scale
        expert = tl.where(is_padding, num_experts, id_of(best).to(tl.int32))
        tl.store(weights + token * TOP_K + place, weight)
        tl.store(experts + token * TOP_K + place, expert)
        keys = tl.where(keys == best, LOWEST_KEY, keys)


def route_triton(
    logits: torch.Tensor,  # [n, experts] unit stride along experts
    config: RoutingConfig,
    bias: torch.Tensor,  # [experts] float32, or [0]
    slots: torch.Tensor,  # [n] int64
    *,
    page_size: int,
) -> Routing:
    """Experts and weights of every token; slots on page 0 are padding.

    Several groups need a power of two of experts.
    """
    (num_tokens, num_experts), groups, top_k = logits.shape, config.groups, config.top_k
    channels = triton.next_power_of_2(num_experts)
    assert groups.num == 1 or channels == num_experts
    experts = torch.empty((num_tokens, top_k), dtype=torch.int32, device=logits.device)
    weights = torch.empty((num_tokens, top_k), dtype=torch.float32, device=logits.device)
    kernel: Any = _route_kernel[(num_tokens,)]
    kernel(
        logits,
        bias if bias.numel() else weights,
        slots,
        experts,
        weights,
        num_experts,
        logits.stride(0),
        page_size,
        config.scale,
        TOP_K=top_k,
        CHANNELS=channels,
        SCORE=_SCORES[config.score],
        IS_NORMED=config.is_normed,
        HAS_BIAS=bias.numel() > 0,
        GROUPS=groups.num,
        NUM_SELECTED=groups.num_selected,
        NUM_SCORED=groups.num_scored,
        PDL=overlap.is_on(logits),
        num_warps=1,
        **overlap.options(logits),
    )
    return Routing(experts=experts, weights=weights)


@triton.jit(do_not_specialize=["num_pairs"])
def _count_kernel(selected, counts, num_pairs, SPAN: tl.constexpr, PDL: tl.constexpr):
    expert = tl.program_id(0)
    total = tl.zeros([SPAN], tl.int32)
    overlap.begin(PDL)
    for start in range(0, num_pairs, SPAN):
        pair = start + tl.arange(0, SPAN)
        of = tl.load(selected + pair, mask=pair < num_pairs, other=-1)
        total += (of == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(total, 0))


@triton.jit(do_not_specialize=["num_pairs", "num_blocks"])
def _align_kernel(
    selected,  # [num_pairs] int32
    counts,  # [num_experts] int32; read only if IS_COUNTED
    rows,  # [num_blocks, ROWS] int32
    owners,  # [num_blocks] int32
    num_pairs,
    num_blocks,
    num_experts,
    IS_COUNTED: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
    SPAN: tl.constexpr,
    PDL: tl.constexpr,
):
    expert = tl.program_id(0)
    channel = tl.arange(0, CHANNELS)
    overlap.begin(PDL)
    if IS_COUNTED:
        count = tl.load(counts + channel, mask=channel < num_experts, other=0)
    else:
        each = tl.arange(0, SPAN)
        of = tl.load(selected + each, mask=each < num_pairs, other=num_experts)
        is_routed = of < num_experts
        count = tl.histogram(tl.where(is_routed, of, 0), CHANNELS, mask=is_routed)
    blocks = (count + ROWS - 1) // ROWS
    first = tl.sum(tl.where(channel < expert, blocks, 0), 0)
    own = tl.sum(tl.where(channel == expert, blocks, 0), 0)
    used = tl.sum(tl.where(channel == expert, count, 0), 0)
    # In the order of the pairs, so that the result is deterministic.
    done = 0
    for start in range(0, num_pairs, SPAN):
        pair = start + tl.arange(0, SPAN)
        hit = (tl.load(selected + pair, mask=pair < num_pairs, other=-1) == expert).to(tl.int32)
        rank = done + tl.cumsum(hit, 0) - 1
        tl.store(rows + first * ROWS + rank, pair, mask=hit > 0)
        done += tl.sum(hit, 0)
    tail = tl.arange(0, ROWS)
    last = (own - 1) * ROWS + tail
    empty = tl.zeros([ROWS], tl.int32) + num_pairs
    tl.store(rows + first * ROWS + last, empty, mask=(own > 0) & (last >= used))
    for start in range(0, own, ROWS):
        block = start + tail
        tl.store(owners + first + block, tl.zeros([ROWS], tl.int32) + expert, mask=block < own)
    if expert == num_experts - 1:
        for start in range(first + own, num_blocks, ROWS):
            block = start + tail
            tl.store(owners + block, tl.full([ROWS], -1, tl.int32), mask=block < num_blocks)


def align_blocks(
    selected: torch.Tensor,  # [n, top_k] int32 contiguous
    num_experts: int,
    block_rows: int,
) -> ExpertBlocks:
    """The pairs of every expert in separate blocks, in the order of the pairs."""
    num_pairs = selected.numel()
    num_blocks = num_pairs // block_rows + min(num_experts, num_pairs)
    rows = torch.empty((num_blocks, block_rows), dtype=torch.int32, device=selected.device)
    owners = torch.empty(num_blocks, dtype=torch.int32, device=selected.device)
    is_counted = num_pairs > _SPAN
    counts = _count(selected, num_experts) if is_counted else owners
    kernel: Any = _align_kernel[(num_experts,)]
    kernel(
        selected,
        counts,
        rows,
        owners,
        num_pairs,
        num_blocks,
        num_experts,
        IS_COUNTED=is_counted,
        ROWS=block_rows,
        CHANNELS=max(_WARP, triton.next_power_of_2(num_experts)),
        SPAN=min(_SPAN, max(4 * _WARP, triton.next_power_of_2(num_pairs))),
        PDL=overlap.is_on(selected),
        **overlap.options(selected),
    )
    return ExpertBlocks(rows=rows, owners=owners)


def _count(selected: torch.Tensor, num_experts: int) -> torch.Tensor:  # [experts] int32
    counts = torch.empty(num_experts, dtype=torch.int32, device=selected.device)
    kernel: Any = _count_kernel[(num_experts,)]
    kernel(
        selected,
        counts,
        selected.numel(),
        SPAN=_SPAN,
        PDL=overlap.is_on(selected),
        **overlap.options(selected),
    )
    return counts
