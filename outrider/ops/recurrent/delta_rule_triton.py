"""Recurrent layers, as `ops/recurrent/delta_rule.py` says them: convolution, gated delta rule, gated norm.

States are float32 [table_rows, value_heads, key_dim, value_dim]; a program owns some columns of one
for a whole step and goes through the tokens in turn, so no row's bits depend on the others.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.attention.splits_triton import EXACT
from outrider.ops.norm_rope.rms_norm_triton import scaled

_CHANNELS = 1024  # of one program that copies lanes
_CONV_CHANNELS = 256  # lanes of one program that mixes them,
_TOKENS = 16  # and tokens, once a step has more of them
_HEADS = 8  # of one program that normalises them
# Columns of a state in one warp: 64 registers per thread at a key_dim of 128, and 64 bytes of each
# of its rows. More warps would have to meet for both sums of every token.
_COLUMNS = 16


@triton.jit(
    do_not_specialize=["num_query", "num_slots"], do_not_specialize_on_alignment=["sources"]
)
def _conv_kernel(
    ring, fresh, sources, conv_weight, out, fresh_stride, num_query, width, num_slots,
    WINDOW: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    token = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    is_token, is_channel = token < num_query, channel < width
    total = tl.zeros([TOKENS, BLOCK], tl.float32)
    overlap.begin(PDL)
    for place in tl.static_range(WINDOW):
        source = tl.load(sources + token * WINDOW + place, mask=is_token, other=-1)[:, None]
        is_fresh = source >= num_slots
        is_kept = (source >= 0) & (source < num_slots)
        kept = tl.load(ring + source * width + channel, mask=is_channel & is_kept, other=0.0)
        at = fresh + (source - num_slots) * fresh_stride + channel
        new = tl.load(at, mask=is_channel & is_fresh, other=0.0)
        tap = tl.load(conv_weight + channel * WINDOW + place, mask=is_channel, other=0.0)
        total += tl.where(is_fresh, new, kept).to(tl.float32) * tap
    inside = is_token[:, None] & is_channel
    tl.store(out + token[:, None] * width + channel, total * tl.sigmoid(total), mask=inside)


@triton.jit
def _unit(at, channel, inside, eps):
    """A key or a query of unit length."""
    x = tl.load(at + channel, mask=inside, other=0.0).to(tl.float32)
    return x * tl.rsqrt(tl.sum(x * x) + eps)


@triton.jit
def softplus(x):
    """log(1 + e^x), as torch computes it."""
    return tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(x)))


@triton.jit
def _advance(state, key, value, beta, decay_gate, decay_scale, dt_bias):
    """The state after a token."""
    state = state * tl.exp(decay_scale * softplus(decay_gate.to(tl.float32) + dt_bias))
    change = (value - tl.sum(state * key[:, None], 0)) * tl.sigmoid(beta.to(tl.float32))
    return state + key[:, None] * change[None, :]


@triton.jit
def apply_accepted(
    state, kept, num_accepted, head, key_head, channel, column, decay_scale, dt_bias, eps,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
):  # fmt: skip
    """The state after the first `fold` tokens of those that a row kept pending."""
    KEYS: tl.constexpr = KEY_HEADS * KEY_DIM
    VALUES: tl.constexpr = VALUE_HEADS * VALUE_DIM
    is_value = column < VALUE_DIM
    for _ in range(num_accepted):
        key = _unit(kept + key_head * KEY_DIM, channel, channel < KEY_DIM, eps)
        at = kept + KEYS + head * VALUE_DIM + column
        value = tl.load(at, mask=is_value, other=0.0).to(tl.float32)
        beta = tl.load(kept + KEYS + VALUES + head)
        decay_gate = tl.load(kept + KEYS + VALUES + VALUE_HEADS + head)
        state = _advance(state, key, value, beta, decay_gate, decay_scale, dt_bias)
        kept += KEYS + VALUES + 2 * VALUE_HEADS
    return state


@triton.jit(
    do_not_specialize=["num_rows", "most"],
    do_not_specialize_on_alignment=["rows", "accepted_counts", "firsts", "counts"],
)
def _delta_rule_kernel(
    qkv, gates, state, node_inputs, rows, accepted_counts, firsts, counts, decay_scales, dt_biases, out,
    qkv_stride, gates_stride, num_rows, most, eps, scale,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    KEY_BLOCK: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A row of the step, a head, and some columns of its state."""
    step_row = tl.program_id(0)
    head = tl.program_id(1)
    key_head = head // (VALUE_HEADS // KEY_HEADS)
    KEYS: tl.constexpr = KEY_HEADS * KEY_DIM
    VALUES: tl.constexpr = VALUE_HEADS * VALUE_DIM
    channel = tl.arange(0, KEY_BLOCK)
    is_key = channel < KEY_DIM
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    is_value = column < VALUE_DIM
    inside = is_key[:, None] & is_value[None, :]
    decay_scale = tl.load(decay_scales + head)
    dt_bias = tl.load(dt_biases + head)
    overlap.wait(PDL)
    row = tl.load(rows + step_row).to(tl.int64)
    num_accepted = tl.load(accepted_counts + step_row).to(tl.int32)
    first = tl.load(firsts + step_row).to(tl.int64)
    count = tl.load(counts + step_row).to(tl.int32)
    tile = channel[:, None] * VALUE_DIM + column[None, :]
    place = state + (row * VALUE_HEADS + head) * (KEY_DIM * VALUE_DIM) + tile
    s = tl.load(place, mask=inside & (num_accepted >= 0), other=0.0)

    s = apply_accepted(
        s, node_inputs + row * most * (KEYS + VALUES + 2 * VALUE_HEADS), num_accepted,
        head, key_head, channel, column, decay_scale, dt_bias, eps,
        KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM,
    )  # fmt: skip
    if step_row < num_rows:  # nodes may be taken back
        tl.store(place, s, mask=inside)

    token = qkv + first * qkv_stride
    gate = gates + first * gates_stride
    target = out + (first * VALUE_HEADS + head) * VALUE_DIM + column
    for _ in range(count):
        query = _unit(token + key_head * KEY_DIM, channel, is_key, eps) * scale
        key = _unit(token + KEYS + key_head * KEY_DIM, channel, is_key, eps)
        at = token + 2 * KEYS + head * VALUE_DIM + column
        value = tl.load(at, mask=is_value, other=0.0).to(tl.float32)
        beta = tl.load(gate + head)
        decay_gate = tl.load(gate + VALUE_HEADS + head)
        s = _advance(s, key, value, beta, decay_gate, decay_scale, dt_bias)
        tl.store(target, tl.sum(s * query[:, None], 0), mask=is_value)
        token += qkv_stride
        gate += gates_stride
        target += VALUES
    overlap.release(PDL)
    if step_row >= num_rows:  # chunks are committed as they run
        tl.store(place, s, mask=inside)


@triton.jit(do_not_specialize=["nodes", "most"], do_not_specialize_on_alignment=["rows"])
def _save_inputs_kernel(
    qkv, gates, node_inputs, rows, qkv_stride, gates_stride, nodes, most,
    KEYS: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    overlap.begin(PDL)
    row = tl.load(rows + token // nodes).to(tl.int64)
    source = qkv + token.to(tl.int64) * qkv_stride + KEYS + channel
    channels = tl.load(source, mask=channel < CHANNELS, other=0.0)
    is_gate = (channel >= CHANNELS) & (channel < WIDTH)
    at = gates + token.to(tl.int64) * gates_stride + channel - CHANNELS
    gate = tl.load(at, mask=is_gate, other=0.0)
    target = node_inputs + (row * most + token % nodes) * WIDTH + channel
    tl.store(target, tl.where(is_gate, gate, channels), mask=channel < WIDTH)


@triton.jit(do_not_specialize=["num_heads"])
def _gated_norm_kernel(
    read, gate, weight, out, gate_stride, num_heads, heads, dim, eps,
    HEADS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    head = (tl.program_id(0) * HEADS + tl.arange(0, HEADS)).to(tl.int64)[:, None]
    channel = tl.arange(0, BLOCK)[None, :]
    inside = (head < num_heads) & (channel < dim)
    scales = tl.load(weight + channel, mask=channel < dim, other=0.0)
    overlap.begin(PDL)
    values = tl.load(read + head * dim + channel, mask=inside, other=0.0).to(tl.float32)
    at = gate + head // heads * gate_stride + head % heads * dim + channel
    opening = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    normed = scaled(values, tl.sum(values * values, 1)[:, None] / dim, scales, eps)
    y = normed * opening * tl.sigmoid(opening)
    tl.store(out + head * dim + channel, y, mask=inside)


def causal_conv(
    ring: torch.Tensor,  # [slots, mixed]
    fresh: torch.Tensor,  # [num_query, mixed], lanes side by side
    sources: torch.Tensor,  # [num_query, window] int64
    conv_weight: torch.Tensor,  # [mixed, window] float32
) -> torch.Tensor:  # [num_query, mixed]
    """Every lane mixed over the window of each query token, and activated."""
    num_query, width = fresh.shape
    assert fresh.stride(1) == 1
    assert ring.is_contiguous()
    assert conv_weight.is_contiguous()
    out = torch.empty((num_query, width), dtype=fresh.dtype, device=fresh.device)
    tokens = 1 if num_query <= _TOKENS else _TOKENS
    kernel: Any = _conv_kernel[(triton.cdiv(num_query, tokens), triton.cdiv(width, _CONV_CHANNELS))]
    kernel(
        ring,
        fresh,
        sources,
        conv_weight,
        out,
        fresh.stride(0),
        num_query,
        width,
        ring.shape[0],
        WINDOW=sources.shape[1],
        TOKENS=tokens,
        BLOCK=_CONV_CHANNELS,
        PDL=overlap.is_on(fresh),
        **EXACT,  # few tokens and many have the same bits
        **overlap.options(fresh),
    )
    return out


def gated_delta_rule(
    qkv: torch.Tensor,  # [num_query, mixed] queries, keys, values
    gates: torch.Tensor,  # [num_query, 2 * value_heads] of rates, of paces
    state: torch.Tensor,  # [table_rows, value_heads, key_dim, value_dim] float32, advanced
    node_inputs: torch.Tensor,  # [table_rows, nodes, pending]
    spans: tuple[torch.Tensor, ...],  # rows, accepted_counts, firsts, counts: [step_rows] int64
    weights: tuple[torch.Tensor, torch.Tensor],  # pace, pace_bias: [value_heads] float32
    out: torch.Tensor,  # [num_query, value_heads, value_dim], written where these rows are
    *,
    num_rows: int,  # of these that are uniform
    key_heads: int,
    eps: float,
) -> None:
    """What every query token of these rows reads from its row's state."""
    assert qkv.stride(1) == gates.stride(1) == 1
    assert state.is_contiguous()
    assert node_inputs.is_contiguous()
    if not spans[0].shape[0]:
        return
    _, heads, key_dim, value_dim = state.shape
    columns = min(_COLUMNS, triton.next_power_of_2(value_dim))
    kernel: Any = _delta_rule_kernel[(spans[0].shape[0], heads, triton.cdiv(value_dim, columns))]
    kernel(
        qkv,
        gates,
        state,
        node_inputs,
        *spans,
        *weights,
        out,
        qkv.stride(0),
        gates.stride(0),
        num_rows,
        node_inputs.shape[1],
        eps,
        key_dim**-0.5,
        KEY_HEADS=key_heads,
        VALUE_HEADS=heads,
        KEY_DIM=key_dim,
        VALUE_DIM=value_dim,
        KEY_BLOCK=triton.next_power_of_2(key_dim),
        COLUMNS=columns,
        PDL=overlap.is_on(qkv),
        num_warps=1,
        **EXACT,  # a token that is taken in later has the bits it had when it was read
        **overlap.options(qkv),
    )


def save_node_inputs(
    qkv: torch.Tensor,  # [num_query, mixed]
    gates: torch.Tensor,  # [num_query, 2 * value_heads]
    node_inputs: torch.Tensor,  # [table_rows, nodes, pending], written
    rows: torch.Tensor,  # [rows] int64 of the uniform rows
    nodes: int,  # of each
) -> None:
    """Keep what the states of uniform rows will want of their nodes."""
    if not rows.shape[0]:
        return
    most, width = node_inputs.shape[1:]
    channels = width - gates.shape[1]
    kernel: Any = _save_inputs_kernel[(rows.shape[0] * nodes, triton.cdiv(width, _CHANNELS))]
    kernel(
        qkv,
        gates,
        node_inputs,
        rows,
        qkv.stride(0),
        gates.stride(0),
        nodes,
        most,
        KEYS=qkv.shape[1] - channels,
        CHANNELS=channels,
        WIDTH=width,
        BLOCK=_CHANNELS,
        PDL=overlap.is_on(qkv),
        **overlap.options(qkv),
    )


def gated_norm(
    read: torch.Tensor,  # [num_query, heads, dim]
    gate: torch.Tensor,  # [num_query, heads * dim], lanes side by side
    weight: torch.Tensor,  # [dim]
    eps: float,
) -> torch.Tensor:  # [num_query, heads * dim]
    """Every head of unit root mean square, scaled by the weight and by silu of its gate."""
    num_query, heads, dim = read.shape
    assert read.is_contiguous()
    assert gate.stride(1) == 1
    out = torch.empty((num_query, heads * dim), dtype=read.dtype, device=read.device)
    kernel: Any = _gated_norm_kernel[(triton.cdiv(num_query * heads, _HEADS),)]
    kernel(
        read,
        gate,
        weight,
        out,
        gate.stride(0),
        num_query * heads,
        heads,
        dim,
        eps,
        HEADS=_HEADS,
        BLOCK=triton.next_power_of_2(dim),
        PDL=overlap.is_on(read),
        **EXACT,
        **overlap.options(read),
    )
    return out
