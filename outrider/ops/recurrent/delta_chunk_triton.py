"""The gated delta rule for long chunks, by matrix products over blocks of sixteen tokens.

The tokens of a block add K^T U to a state S, with U = T (V - e^F K S). F is the running sum of log
decays, T = (1 + A)^-1 diag(beta), and A holds the decayed products of each key with earlier keys.
T does not depend on S, so one launch finds it for all blocks.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.recurrent.delta_rule import EPS, DeltaRule
from outrider.ops.recurrent.delta_state_triton import apply_accepted, softplus
from outrider.ops.recurrent.recurrent_rows import RecurrentState, StateRows

BLOCK = 16  # tokens: the least that tensor cores take, and few enough to find T row by row
MIN_CHUNK = 32  # tokens of the longest chunk from which on blocks are faster
_FEW_STATES = 64  # so few leave a part of the GPU idle
_BLOCK = tl.constexpr(BLOCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaTile:
    """Columns of a state that one program owns, and how it is compiled."""

    columns: int
    warps: int
    stages: int


@triton.jit
def _units(at, is_token, channel, KEY_DIM: tl.constexpr, eps):
    """Keys or queries of unit length, of a block of tokens; zeros where there is none."""
    inside = is_token[:, None] & (channel < KEY_DIM)[None, :]
    x = tl.load(at[:, None] + channel[None, :], mask=inside, other=0.0).to(tl.float32)
    return x * tl.rsqrt(tl.sum(x * x, 1) + eps)[:, None]


@triton.jit
def _invert(lower):  # [BLOCK, BLOCK], below the diagonal
    """The inverse of 1 + lower. Row by row: powers of `lower` grow large where keys repeat."""
    row, column = tl.arange(0, _BLOCK)[:, None], tl.arange(0, _BLOCK)[None, :]
    inverse = (row == column).to(tl.float32)
    for index in tl.static_range(1, _BLOCK):
        weights = tl.sum(tl.where(column == index, lower.T, 0.0), 1)  # of the rows before
        inverse -= tl.where(row == index, tl.sum(weights[:, None] * inverse, 0)[None, :], 0.0)
    return inverse


@triton.jit(do_not_specialize_on_alignment=["firsts", "counts"])
def _invert_kernel(
    qkv, gates, firsts, counts, decay_scales, dt_biases, inverse, scores, log_decays,
    qkv_stride, gates_stride, eps, scale,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEY_DIM: tl.constexpr,
    KEY_BLOCK: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A block of a chunk, and a head."""
    chunk, head = tl.program_id(2), tl.program_id(1)
    channel, place = tl.arange(0, KEY_BLOCK), tl.arange(0, _BLOCK)
    decay_scale, dt_bias = tl.load(decay_scales + head), tl.load(dt_biases + head)
    overlap.begin(PDL)
    first, count = tl.load(firsts + chunk), tl.load(counts + chunk)
    if tl.program_id(0) * _BLOCK < count:  # chunks differ in length
        offset = tl.program_id(0) * _BLOCK + place
        is_token = offset < count
        token = first.to(tl.int64) + offset
        at = qkv + token * qkv_stride + head // (VALUE_HEADS // KEY_HEADS) * KEY_DIM
        query = _units(at, is_token, channel, KEY_DIM, eps) * scale
        key = _units(at + KEY_HEADS * KEY_DIM, is_token, channel, KEY_DIM, eps)
        gate = gates + token * gates_stride + head
        beta = tl.sigmoid(tl.load(gate, mask=is_token, other=0.0).to(tl.float32))
        decay_gate = tl.load(gate + VALUE_HEADS, mask=is_token, other=0.0).to(tl.float32)
        log_decay = tl.cumsum(
            tl.where(is_token, decay_scale * softplus(decay_gate + dt_bias), 0.0), 0
        )
        is_before = place[:, None] >= place[None, :]
        decay = tl.exp(tl.where(is_before, log_decay[:, None] - log_decay[None, :], float("-inf")))
        lower = tl.dot(key, key.T, input_precision=PRECISION) * decay * beta[:, None]
        lower = tl.where(place[:, None] > place[None, :], lower, 0.0)
        index = token * VALUE_HEADS + head
        square = index[:, None] * _BLOCK + place[None, :]
        tl.store(inverse + square, _invert(lower) * beta[None, :], mask=is_token[:, None])
        score = tl.dot(query, key.T, input_precision=PRECISION) * decay
        tl.store(scores + square, score, mask=is_token[:, None])
        tl.store(log_decays + index, log_decay, mask=is_token)


@triton.jit(
    do_not_specialize=["most_nodes"],
    do_not_specialize_on_alignment=["rows", "accepted_counts", "firsts", "counts"],
)
def _chunk_kernel(
    qkv, state, node_inputs, rows, accepted_counts, firsts, counts, decay_scales, dt_biases,
    inverse, scores, log_decays, out, qkv_stride, most_nodes, eps, scale,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, KEY_BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A chunk, a head, and some columns of its state: through all blocks in order."""
    chunk, head = tl.program_id(0), tl.program_id(1)
    key_head = head // (VALUE_HEADS // KEY_HEADS)
    channel, place = tl.arange(0, KEY_BLOCK), tl.arange(0, _BLOCK)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    is_key, is_value = channel < KEY_DIM, column < VALUE_DIM
    decay_scale, dt_bias = tl.load(decay_scales + head), tl.load(dt_biases + head)
    overlap.wait(PDL)
    row = tl.load(rows + chunk).to(tl.int64)
    num_accepted = tl.load(accepted_counts + chunk).to(tl.int32)
    first = tl.load(firsts + chunk).to(tl.int64)
    count = tl.load(counts + chunk).to(tl.int32)
    inside = is_key[:, None] & is_value[None, :]
    own = state + (row * VALUE_HEADS + head) * (KEY_DIM * VALUE_DIM)
    own += channel[:, None] * VALUE_DIM + column[None, :]
    s = tl.load(own, mask=inside & (num_accepted >= 0), other=0.0)
    s = apply_accepted(
        s, node_inputs + row * most_nodes * ((KEY_HEADS * KEY_DIM) + VALUE_HEADS * (VALUE_DIM + 2)),
        num_accepted, head, key_head, channel, column, decay_scale, dt_bias, eps,
        KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM,
    )  # fmt: skip
    for start in range(0, count, _BLOCK):
        is_token = start + place < count
        token = first + start + place
        index = token * VALUE_HEADS + head
        square = index[:, None] * _BLOCK + place[None, :]
        at = qkv + token * qkv_stride + key_head * KEY_DIM
        query = _units(at, is_token, channel, KEY_DIM, eps) * scale
        key = _units(at + KEY_HEADS * KEY_DIM, is_token, channel, KEY_DIM, eps)
        values = qkv + token * qkv_stride + 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM
        inside_values = is_token[:, None] & is_value[None, :]
        value = tl.load(values[:, None] + column[None, :], mask=inside_values, other=0.0).to(
            tl.float32
        )
        log_decay = tl.load(log_decays + index, mask=is_token, other=0.0)
        inverted = tl.load(inverse + square, mask=is_token[:, None], other=0.0)
        score = tl.load(scores + square, mask=is_token[:, None], other=0.0)
        decayed = tl.exp(log_decay)[:, None]
        old = tl.dot(key, s, input_precision=PRECISION)
        added = tl.dot(inverted, value - decayed * old, input_precision=PRECISION)
        read = decayed * tl.dot(query, s, input_precision=PRECISION)
        read = tl.dot(score, added, read, input_precision=PRECISION)
        target = out + index[:, None] * VALUE_DIM + column[None, :]
        tl.store(target, read.to(out.dtype.element_ty), mask=inside_values)
        last = tl.min(log_decay, 0)  # decays only add up
        late = key * tl.where(is_token, tl.exp(last - log_decay), 0.0)[:, None]
        s = tl.dot(late.T, added, s * tl.exp(last), input_precision=PRECISION)
    overlap.release(PDL)
    tl.store(own, s, mask=inside)


def choose_tile(num_states: int) -> DeltaTile:
    """Measured on an H200 with states of 128 x 128 (docs/lab/log.md)."""
    if num_states <= _FEW_STATES:
        return DeltaTile(columns=32, warps=8, stages=3)
    return DeltaTile(columns=64, warps=4, stages=2)


def run_chunks(
    qkv: torch.Tensor,  # [num_query, qkv]
    gates: torch.Tensor,  # [num_query, 2 * value_heads]
    layer: RecurrentState,  # its state is advanced
    states: StateRows,  # of chunks
    rule: DeltaRule,
    out: torch.Tensor,  # [num_query, value_heads, value_dim], written where chunks are
    *,
    width: int,  # tokens of the longest chunk
    tile: DeltaTile | None = None,
) -> None:
    """What every token of the chunks reads from its row's state; all tokens change the state."""
    state, node_inputs = layer.state, layer.node_inputs
    _, heads, key_dim, value_dim = state.shape
    num_chunks, num_query = states.rows.shape[0], qkv.shape[0]
    squares = qkv.new_empty((2, num_query, heads, BLOCK), dtype=torch.float32)
    log_decays = qkv.new_empty((num_query, heads), dtype=torch.float32)
    found = (squares[0], squares[1], log_decays)
    tile = tile or choose_tile(num_chunks * heads)
    columns = max(16, min(tile.columns, triton.next_power_of_2(value_dim)))
    options = {
        "KEY_HEADS": rule.sizes.key_heads,
        "VALUE_HEADS": heads,
        "KEY_DIM": key_dim,
        "KEY_BLOCK": max(16, triton.next_power_of_2(key_dim)),
        "PRECISION": "ieee" if qkv.dtype == torch.float32 else "tf32",
        "PDL": overlap.is_on(qkv),
        **overlap.options(qkv),
    }
    weights = (rule.decay_scale, rule.dt_bias)
    invert: Any = _invert_kernel[(triton.cdiv(width, BLOCK), heads, num_chunks)]
    invert(
        qkv, gates, states.firsts, states.counts, *weights, *found,
        qkv.stride(0), gates.stride(0), EPS, key_dim**-0.5, num_warps=1, **options,
    )  # fmt: skip
    run: Any = _chunk_kernel[(num_chunks, heads, triton.cdiv(value_dim, columns))]
    run(
        qkv, state, node_inputs,
        states.rows, states.accepted_counts, states.firsts, states.counts, *weights, *found, out,
        qkv.stride(0), node_inputs.shape[1], EPS, key_dim**-0.5,
        VALUE_DIM=value_dim, COLUMNS=columns, num_warps=tile.warps, num_stages=tile.stages,
        **options,
    )  # fmt: skip
