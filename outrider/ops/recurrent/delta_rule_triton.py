"""The gated delta rule as `delta_rule.py` defines it, token by token; long chunks go by blocks.

States are float32 [table_rows, value_heads, key_dim, value_dim]. A program owns some columns of one
state for a whole step and runs the tokens in order, so no row's bits depend on other rows.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.attention.splits_triton import EXACT
from outrider.ops.recurrent.delta_chunk_triton import MIN_CHUNK, run_chunks
from outrider.ops.recurrent.delta_rule import EPS, DeltaRule
from outrider.ops.recurrent.delta_state_triton import apply_accepted, apply_token, unit_vector
from outrider.ops.recurrent.recurrent_rows import RecurrentRows, RecurrentState, StateRows

_CHANNELS = 1024  # of one program that copies node inputs
# Columns of a state in one warp: 64 registers per thread at a key_dim of 128, and 64 bytes of each
# of its rows. With more warps both sums of every token would need a barrier.
_COLUMNS = 16


@triton.jit(
    do_not_specialize=["num_rows", "most_nodes"],
    do_not_specialize_on_alignment=["rows", "accepted_counts", "firsts", "counts"],
)
def _delta_rule_kernel(
    qkv, gates, state, node_inputs, rows, accepted_counts, firsts, counts,
    decay_scales, dt_biases, out, qkv_stride, gates_stride, num_rows, most_nodes, eps, scale,
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
        s, node_inputs + row * most_nodes * (KEYS + VALUES + 2 * VALUE_HEADS), num_accepted,
        head, key_head, channel, column, decay_scale, dt_bias, eps,
        KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM,
    )  # fmt: skip
    if step_row < num_rows:  # nodes may be rejected
        tl.store(place, s, mask=inside)

    token = qkv + first * qkv_stride
    gate = gates + first * gates_stride
    target = out + (first * VALUE_HEADS + head) * VALUE_DIM + column
    for _ in range(count):
        query = unit_vector(token + key_head * KEY_DIM, channel, is_key, eps) * scale
        key = unit_vector(token + KEYS + key_head * KEY_DIM, channel, is_key, eps)
        at = token + 2 * KEYS + head * VALUE_DIM + column
        value = tl.load(at, mask=is_value, other=0.0).to(tl.float32)
        beta = tl.load(gate + head)
        decay_gate = tl.load(gate + VALUE_HEADS + head)
        s = apply_token(s, key, value, beta, decay_gate, decay_scale, dt_bias)
        tl.store(target, tl.sum(s * query[:, None], 0), mask=is_value)
        token += qkv_stride
        gate += gates_stride
        target += VALUES
    overlap.release(PDL)
    if step_row >= num_rows:  # chunks are committed as they run
        tl.store(place, s, mask=inside)


@triton.jit(do_not_specialize=["nodes", "most_nodes"], do_not_specialize_on_alignment=["rows"])
def _save_inputs_kernel(
    qkv, gates, node_inputs, rows, qkv_stride, gates_stride, nodes, most_nodes,
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
    target = node_inputs + (row * most_nodes + token % nodes) * WIDTH + channel
    tl.store(target, tl.where(is_gate, gate, channels), mask=channel < WIDTH)


def gated_delta_rule_triton(
    qkv: torch.Tensor,
    gates: torch.Tensor,
    layer: RecurrentState,
    rows: RecurrentRows,
    rule: DeltaRule,
) -> torch.Tensor:
    """`gated_delta_rule` by kernels. Node inputs are overwritten after all of them were read.

    Long chunks go by blocks of tokens, unless their bits must be those of one token at a time.
    """
    states, num_rows, sizes = rows.states, rows.num_rows, rule.sizes
    out = qkv.new_empty((qkv.shape[0], sizes.value_heads, sizes.value_dim))
    by_blocks = not rule.is_fixed and rows.chunk_width >= MIN_CHUNK
    by_token = states.between(0, num_rows if by_blocks else None)
    run_tokens(qkv, gates, layer, by_token, rule, out, num_rows=num_rows)
    if by_blocks:
        chunks = states.between(num_rows, None)
        run_chunks(qkv, gates, layer, chunks, rule, out, width=rows.chunk_width)
    _save_node_inputs(qkv, gates, layer.node_inputs, states.rows[:num_rows], rows.nodes)
    return out


def run_tokens(
    qkv: torch.Tensor,  # [num_query, qkv]
    gates: torch.Tensor,  # [num_query, 2 * value_heads]
    layer: RecurrentState,  # its state is advanced
    states: StateRows,
    rule: DeltaRule,
    out: torch.Tensor,  # [num_query, value_heads, value_dim], written where these rows are
    *,
    num_rows: int,  # the first rows, whose tokens are nodes
) -> None:
    """What every query token of these rows reads from its row's state, one token at a time."""
    state, node_inputs = layer.state, layer.node_inputs
    assert qkv.stride(1) == gates.stride(1) == 1
    assert state.is_contiguous()
    assert node_inputs.is_contiguous()
    num_states = states.rows.shape[0]
    if not num_states:
        return
    _, heads, key_dim, value_dim = state.shape
    columns = min(_COLUMNS, triton.next_power_of_2(value_dim))
    kernel: Any = _delta_rule_kernel[(num_states, heads, triton.cdiv(value_dim, columns))]
    kernel(
        qkv,
        gates,
        state,
        node_inputs,
        states.rows,
        states.accepted_counts,
        states.firsts,
        states.counts,
        rule.decay_scale,
        rule.dt_bias,
        out,
        qkv.stride(0),
        gates.stride(0),
        num_rows,
        node_inputs.shape[1],
        EPS,
        key_dim**-0.5,
        KEY_HEADS=rule.sizes.key_heads,
        VALUE_HEADS=heads,
        KEY_DIM=key_dim,
        VALUE_DIM=value_dim,
        KEY_BLOCK=triton.next_power_of_2(key_dim),
        COLUMNS=columns,
        PDL=overlap.is_on(qkv),
        num_warps=1,
        **EXACT,  # an accepted node has the same bits when it is applied as when it was drafted
        **overlap.options(qkv),
    )


def _save_node_inputs(
    qkv: torch.Tensor,  # [num_query, qkv]
    gates: torch.Tensor,  # [num_query, 2 * value_heads]
    node_inputs: torch.Tensor,  # [table_rows, nodes, node_inputs], written
    rows: torch.Tensor,  # [rows] int64 of the decode rows
    nodes: int,  # of each
) -> None:
    """Save what the accepted nodes will change their row's state by."""
    if not rows.shape[0]:
        return
    most_nodes, width = node_inputs.shape[1:]
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
        most_nodes,
        KEYS=qkv.shape[1] - channels,
        CHANNELS=channels,
        WIDTH=width,
        BLOCK=_CHANNELS,
        PDL=overlap.is_on(qkv),
        **overlap.options(qkv),
    )
