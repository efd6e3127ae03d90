"""What recurrent layers compute on a plan, in plain torch: the gated delta rule, token by token.

A state S [key_dim, value_dim] reads a token with key k, value v, decay d and rate b as
    S := d S;   S := S + k (b (v - k S));   and a query q reads q S.
Drafted tokens go through the same sums when they are kept as when they were drafted.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from outrider.kv.ring_plan import RingPlan, RingTokens
from outrider.models.recurrent.recurrence import Recurrence
from outrider.models.recurrent.recurrent_cache import StateStore
from outrider.models.recurrent.recurrent_plan import NEW_TEXT, RecurrentPlan

EPS = 1e-6  # added to squared lengths of keys and queries


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaRule:
    """The sizes of a layer, and its weights that are no linear maps."""

    sizes: Recurrence
    conv_weight: torch.Tensor  # [mixed, window] float32, of the convolution
    decay_scale: torch.Tensor  # [value_heads] float32, at most 0: how fast each head forgets
    dt_bias: torch.Tensor  # [value_heads] float32
    is_fixed: bool  # a token's bits do not depend on the step that takes it in


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    """What a state reads of tokens, in float32."""

    keys: torch.Tensor  # [rows, tokens, value_heads, key_dim]
    values: torch.Tensor  # [rows, tokens, value_heads, value_dim]
    decays: torch.Tensor  # [rows, tokens, value_heads]
    betas: torch.Tensor  # [rows, tokens, value_heads]


def causal_conv(
    tokens: RingTokens,  # of width mixed
    part: RingPlan,
    conv_weight: torch.Tensor,  # [mixed, window] float32
) -> torch.Tensor:  # [num_query, mixed]
    """Every lane mixed over the window of each query token, and activated."""
    if tokens.fresh.is_cuda:
        from outrider.ops.recurrent.delta_rule_triton import (
            causal_conv as launch,  # a CPU installation has no Triton
        )

        return launch(tokens.ring, tokens.fresh, part.sources, conv_weight)
    total = torch.zeros(tokens.fresh.shape, dtype=torch.float32, device=conv_weight.device)
    for place in range(part.sources.shape[1]):
        sources = part.sources[:, place : place + 1]
        channels = tokens.read(sources).squeeze(1).float()
        total.addcmul_(channels.masked_fill_(sources < 0, 0.0), conv_weight[:, place])
    return F.silu(total).to(tokens.fresh.dtype)


def gated_delta_rule(
    qkv: torch.Tensor,  # [num_query, mixed] queries, keys, values
    gates: torch.Tensor,  # [num_query, 2 * value_heads] of rates, of decays
    store: StateStore,
    plan: RecurrentPlan,
    rule: DeltaRule,
) -> torch.Tensor:  # [num_query, value_heads, value_dim]
    """What every query token reads from its row's state.

    States take in what was kept of the last step, and chunks; nodes are left pending.
    """
    if qkv.is_cuda:
        return recur_on_gpu(qkv, gates, store, plan, rule)
    shape, sizes, num = plan.shape, rule.sizes, plan.shape.num_decode_query
    inputs = torch.cat([qkv[:, sizes.keys :], gates], dim=1)  # [num_query, pending]
    queries = qkv[:, : sizes.keys]
    state = _apply_accepted(store, plan, rule)  # [step_rows, value_heads, key_dim, value_dim]
    nodes, chunks = state[: shape.rows], state[shape.rows :]
    out = []
    if shape.rows:
        rows = plan.states.rows[: shape.rows]
        store.state.index_copy_(0, rows, nodes)
        by_row = inputs[:num].view(shape.rows, shape.nodes, -1)
        by_row_queries = queries[:num].view(shape.rows, shape.nodes, -1)
        out.append(_scan(nodes, _inputs(by_row, rule), by_row_queries, rule))
        _save_nodes(by_row, rows, store)
    if shape.chunk.rows:
        out.append(_run_chunks(chunks, inputs[num:], queries[num:], plan, rule))
        store.state.index_copy_(0, plan.states.rows[shape.rows :], chunks)
    return torch.cat(out).to(qkv.dtype)


def recur_on_gpu(
    qkv: torch.Tensor,
    gates: torch.Tensor,
    store: StateStore,
    plan: RecurrentPlan,
    rule: DeltaRule,
) -> torch.Tensor:
    """The same; nothing may be left pending before all has been taken in.

    Long chunks go by blocks of tokens, unless their bits must be those of one after another.
    """
    from outrider.ops.recurrent import delta_chunk_triton as delta_blocks
    from outrider.ops.recurrent import delta_rule_triton as delta

    states, shape, sizes = plan.states, plan.shape, rule.sizes
    out = qkv.new_empty((qkv.shape[0], sizes.value_heads, sizes.value_dim))
    by_blocks = not rule.is_fixed and shape.chunk.width >= delta_blocks.MIN_CHUNK
    end = shape.rows if by_blocks else None
    spans = (states.rows, states.accepted_counts, states.firsts, states.counts)
    in_turn, chunks = tuple(s[:end] for s in spans), tuple(s[shape.rows :] for s in spans)
    weights = (rule.decay_scale, rule.dt_bias)
    delta.gated_delta_rule(
        qkv, gates, store.state, store.node_inputs, in_turn, weights, out,
        num_rows=shape.rows, key_heads=sizes.key_heads, eps=EPS,
    )  # fmt: skip
    if by_blocks:
        delta_blocks.pass_chunks(
            qkv, gates, store.state, store.node_inputs, chunks, weights, out,
            width=shape.chunk.width, key_heads=sizes.key_heads, eps=EPS,
        )  # fmt: skip
    delta.save_node_inputs(qkv, gates, store.node_inputs, states.rows[: shape.rows], shape.nodes)
    return out


def _apply_accepted(store: StateStore, plan: RecurrentPlan, rule: DeltaRule) -> torch.Tensor:
    """The states of all rows of the step at the beginning of it."""
    states = plan.states
    state = store.state.index_select(0, states.rows)
    state.masked_fill_((states.accepted_counts == NEW_TEXT)[:, None, None, None], 0.0)
    node_inputs = store.node_inputs.index_select(0, states.rows)  # [step_rows, nodes, pending]
    place = torch.arange(node_inputs.shape[1], device=state.device)
    inputs = _idle(_inputs(node_inputs, rule), place < states.accepted_counts[:, None])
    for token in range(node_inputs.shape[1]):
        _advance_(state, inputs, token)
    return state


def _run_chunks(
    state: torch.Tensor,  # [chunk.rows, value_heads, key_dim, value_dim], advanced in place
    channels: torch.Tensor,  # [chunk.tokens, node_inputs]
    queries: torch.Tensor,  # [chunk.tokens, keys]
    plan: RecurrentPlan,
    rule: DeltaRule,
) -> torch.Tensor:  # [chunk.tokens, value_heads, value_dim]
    """Chunks differ in length: they lie in a rectangle, whose unused places change no state."""
    shape, chunk, states = plan.shape, plan.shape.chunk, plan.states
    owners = plan.owners[shape.num_decode_query :]
    offsets = plan.query_index[shape.num_decode_query :] - states.firsts[owners]
    places = (owners - shape.rows) * chunk.width + offsets

    def spread(given: torch.Tensor) -> torch.Tensor:  # [chunk.rows, chunk.width, ...]
        rectangle = given.new_zeros(chunk.rows * chunk.width, given.shape[1])
        return rectangle.index_copy_(0, places, given).view(chunk.rows, chunk.width, -1)

    is_used = spread(torch.ones_like(channels[:, :1])).squeeze(2) > 0
    inputs = _idle(_inputs(spread(channels), rule), is_used)
    return _scan(state, inputs, spread(queries), rule).index_select(0, places)


def _scan(
    state: torch.Tensor,  # [rows, value_heads, key_dim, value_dim], advanced in place
    inputs: _Inputs,
    queries: torch.Tensor,  # [rows, tokens, keys]
    rule: DeltaRule,
) -> torch.Tensor:  # [rows * tokens, value_heads, value_dim]
    """Token after token of every row: the state takes it in, and its query reads the state."""
    query = _unit_heads(queries, rule.sizes) * rule.sizes.key_dim**-0.5
    read = torch.empty_like(inputs.values)
    for token in range(queries.shape[1]):
        _advance_(state, inputs, token)
        torch.sum(state * query[:, token, :, :, None], dim=-2, out=read[:, token])
    return read.flatten(0, 1)


def _advance_(state: torch.Tensor, inputs: _Inputs, token: int) -> None:
    """Let the states of all rows take in their token of that number."""
    key = inputs.keys[:, token, :, :, None]  # [rows, value_heads, key_dim, 1]
    state.mul_(inputs.decays[:, token, :, None, None])
    change = inputs.values[:, token] - (state * key).sum(-2)  # [rows, value_heads, value_dim]
    change.mul_(inputs.betas[:, token, :, None])
    state.addcmul_(key, change[:, :, None])


def _inputs(inputs: torch.Tensor, rule: DeltaRule) -> _Inputs:  # [rows, tokens, pending]
    sizes, heads = rule.sizes, rule.sizes.value_heads
    channels = torch.split(inputs, [sizes.keys, sizes.values, heads, heads], dim=-1)
    keys, values, betas, decay_gates = channels
    return _Inputs(
        keys=_unit_heads(keys, sizes),
        values=values.float().reshape(*values.shape[:-1], heads, sizes.value_dim),
        decays=torch.exp(rule.decay_scale * F.softplus(decay_gates.float() + rule.dt_bias)),
        betas=betas.float().sigmoid(),
    )


def _idle(inputs: _Inputs, is_used: torch.Tensor) -> _Inputs:  # [rows, tokens]
    """The same, but tokens that are not used leave a state exactly as it is, numbers or not."""
    unused = ~is_used[..., None]
    return _Inputs(
        keys=inputs.keys.masked_fill(unused[..., None], 0.0),
        values=inputs.values.masked_fill(unused[..., None], 0.0),
        decays=inputs.decays.masked_fill(unused, 1.0),
        betas=inputs.betas.masked_fill(unused, 0.0),
    )


def _unit_heads(channels: torch.Tensor, sizes: Recurrence) -> torch.Tensor:
    """Keys or queries of unit length, one for every value head: [..., value_heads, key_dim]."""
    heads = channels.float().reshape(*channels.shape[:-1], sizes.key_heads, sizes.key_dim)
    unit = heads * torch.rsqrt((heads * heads).sum(-1, keepdim=True) + EPS)
    return unit.repeat_interleave(sizes.value_heads // sizes.key_heads, dim=-2)


def _save_nodes(by_row: torch.Tensor, rows: torch.Tensor, store: StateStore) -> None:
    """Leave the nodes of all rows pending: [rows, nodes, pending]."""
    num_nodes, most = by_row.shape[1], store.node_inputs.shape[1]
    node = torch.arange(num_nodes, device=rows.device)
    places = (rows[:, None] * most + node).flatten()
    store.node_inputs.view(-1, by_row.shape[2]).index_copy_(0, places, by_row.flatten(0, 1))
