"""The gated delta rule of recurrent layers.

A token with key k, value v, decay d and rate beta changes a state S [key_dim, value_dim] by
    S := d S;   S := S + k (beta (v - k S));   and a query q reads q S.
Accepted nodes go through the same sums in the next step as when they were drafted.
"""

from dataclasses import dataclass

import torch

from outrider.ops.fixed_activations import sigmoid, softplus
from outrider.ops.recurrent.delta_sizes import DeltaSizes
from outrider.ops.recurrent.recurrent_rows import NEW_TEXT, RecurrentRows, RecurrentState

EPS = 1e-6  # added to squared lengths of keys and queries


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaRule:
    """The sizes of a layer, and its weights besides projections."""

    sizes: DeltaSizes
    conv_weight: torch.Tensor  # [qkv, window] float32, of the convolution
    decay_scale: torch.Tensor  # [value_heads] float32, at most 0: how fast each head forgets
    dt_bias: torch.Tensor  # [value_heads] float32
    is_fixed: bool  # a token's bits do not depend on the other tokens of its chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    """The inputs by which tokens change a state, in float32."""

    keys: torch.Tensor  # [rows, tokens, value_heads, key_dim]
    values: torch.Tensor  # [rows, tokens, value_heads, value_dim]
    decays: torch.Tensor  # [rows, tokens, value_heads]
    betas: torch.Tensor  # [rows, tokens, value_heads]


def gated_delta_rule(
    qkv: torch.Tensor,  # [num_query, qkv] queries, keys, values
    gates: torch.Tensor,  # [num_query, 2 * value_heads] of betas, of decays
    layer: RecurrentState,
    rows: RecurrentRows,
    rule: DeltaRule,
) -> torch.Tensor:  # [num_query, value_heads, value_dim]
    """What every query token reads from its row's state.

    States change by the accepted nodes of the last step, and by chunks. The nodes of this step
    change no stored state; their inputs are saved.
    """
    if qkv.is_cuda:
        from outrider.ops.recurrent.delta_rule_triton import gated_delta_rule_triton

        return gated_delta_rule_triton(qkv, gates, layer, rows, rule)
    return gated_delta_rule_reference(qkv, gates, layer, rows, rule)


def gated_delta_rule_reference(
    qkv: torch.Tensor,
    gates: torch.Tensor,
    layer: RecurrentState,
    rows: RecurrentRows,
    rule: DeltaRule,
) -> torch.Tensor:
    """The same in torch, token by token."""
    keys, num_rows, num_nodes = rule.sizes.keys, rows.num_rows, rows.num_decode_query
    inputs = torch.cat([qkv[:, keys:], gates], dim=1)  # [num_query, node_inputs]
    queries = qkv[:, :keys]
    state = _apply_accepted(layer, rows, rule)  # [step_rows, value_heads, key_dim, value_dim]
    nodes, chunks = state[:num_rows], state[num_rows:]
    out = []
    if num_rows:
        table_rows = rows.states.rows[:num_rows]
        layer.state.index_copy_(0, table_rows, nodes)
        by_row = inputs[:num_nodes].view(num_rows, rows.nodes, -1)
        by_row_queries = queries[:num_nodes].view(num_rows, rows.nodes, -1)
        out.append(_scan(nodes, _inputs(by_row, rule), by_row_queries, rule))
        _save_nodes(by_row, table_rows, layer)
    if rows.num_chunks:
        out.append(_run_chunks(chunks, inputs[num_nodes:], queries[num_nodes:], rows, rule))
        layer.state.index_copy_(0, rows.states.rows[num_rows:], chunks)
    return torch.cat(out).to(qkv.dtype)


def _apply_accepted(layer: RecurrentState, rows: RecurrentRows, rule: DeltaRule) -> torch.Tensor:
    """The states of all rows at the beginning of the step."""
    states = rows.states
    state = layer.state.index_select(0, states.rows)
    state.masked_fill_((states.accepted_counts == NEW_TEXT)[:, None, None, None], 0.0)
    saved = layer.node_inputs.index_select(0, states.rows)  # [step_rows, nodes, node_inputs]
    place = torch.arange(saved.shape[1], device=state.device)
    inputs = _masked(_inputs(saved, rule), place < states.accepted_counts[:, None])
    for token in range(saved.shape[1]):
        _apply_token(state, inputs, token)
    return state


def _run_chunks(
    state: torch.Tensor,  # [chunk.rows, value_heads, key_dim, value_dim], advanced in place
    channels: torch.Tensor,  # [chunk.tokens, node_inputs]
    queries: torch.Tensor,  # [chunk.tokens, keys]
    rows: RecurrentRows,
    rule: DeltaRule,
) -> torch.Tensor:  # [chunk.tokens, value_heads, value_dim]
    """Chunks differ in length: they lie in a rectangle, whose unused places change no state."""
    num_chunks, width = rows.num_chunks, rows.chunk_width
    owners = rows.window.owners[rows.num_decode_query :]
    offsets = rows.window.query_index[rows.num_decode_query :] - rows.states.firsts[owners]
    places = (owners - rows.num_rows) * width + offsets

    def spread(given: torch.Tensor) -> torch.Tensor:  # [chunk.rows, chunk_width, ...]
        rectangle = given.new_zeros(num_chunks * width, given.shape[1])
        return rectangle.index_copy_(0, places, given).view(num_chunks, width, -1)

    is_used = spread(torch.ones_like(channels[:, :1])).squeeze(2) > 0
    inputs = _masked(_inputs(spread(channels), rule), is_used)
    return _scan(state, inputs, spread(queries), rule).index_select(0, places)


def _scan(
    state: torch.Tensor,  # [rows, value_heads, key_dim, value_dim], advanced in place
    inputs: _Inputs,
    queries: torch.Tensor,  # [rows, tokens, keys]
    rule: DeltaRule,
) -> torch.Tensor:  # [rows * tokens, value_heads, value_dim]
    """Token after token of every row: the token changes the state, then its query reads it."""
    query = _unit_heads(queries, rule.sizes) * rule.sizes.key_dim**-0.5
    read = torch.empty_like(inputs.values)
    for token in range(queries.shape[1]):
        _apply_token(state, inputs, token)
        torch.sum(state * query[:, token, :, :, None], dim=-2, out=read[:, token])
    return read.flatten(0, 1)


def _apply_token(state: torch.Tensor, inputs: _Inputs, token: int) -> None:
    """Change the states of all rows by their token of that index."""
    key = inputs.keys[:, token, :, :, None]  # [rows, value_heads, key_dim, 1]
    state.mul_(inputs.decays[:, token, :, None, None])
    change = inputs.values[:, token] - (state * key).sum(-2)  # [rows, value_heads, value_dim]
    change.mul_(inputs.betas[:, token, :, None])
    state.addcmul_(key, change[:, :, None])


def _inputs(channels: torch.Tensor, rule: DeltaRule) -> _Inputs:  # [rows, tokens, node_inputs]
    sizes, heads = rule.sizes, rule.sizes.value_heads
    parts = torch.split(channels, [sizes.keys, sizes.values, heads, heads], dim=-1)
    keys, values, betas, decay_gates = parts
    return _Inputs(
        keys=_unit_heads(keys, sizes),
        values=values.float().reshape(*values.shape[:-1], heads, sizes.value_dim),
        decays=torch.exp(rule.decay_scale * softplus(decay_gates.float() + rule.dt_bias)),
        betas=sigmoid(betas.float()),
    )


def _masked(inputs: _Inputs, is_used: torch.Tensor) -> _Inputs:  # [rows, tokens]
    """The same, but unused tokens leave a state bit for bit as it is, even if they hold NaN."""
    unused = ~is_used[..., None]
    return _Inputs(
        keys=inputs.keys.masked_fill(unused[..., None], 0.0),
        values=inputs.values.masked_fill(unused[..., None], 0.0),
        decays=inputs.decays.masked_fill(unused, 1.0),
        betas=inputs.betas.masked_fill(unused, 0.0),
    )


def _unit_heads(channels: torch.Tensor, sizes: DeltaSizes) -> torch.Tensor:
    """Keys or queries of unit length, one for every value head: [..., value_heads, key_dim]."""
    heads = channels.float().reshape(*channels.shape[:-1], sizes.key_heads, sizes.key_dim)
    unit = heads * torch.rsqrt((heads * heads).sum(-1, keepdim=True) + EPS)
    return unit.repeat_interleave(sizes.value_heads // sizes.key_heads, dim=-2)


def _save_nodes(by_row: torch.Tensor, rows: torch.Tensor, layer: RecurrentState) -> None:
    """Save the inputs of the nodes of all rows: [rows, nodes, node_inputs]."""
    num_nodes, most_nodes = by_row.shape[1], layer.node_inputs.shape[1]
    node = torch.arange(num_nodes, device=rows.device)
    places = (rows[:, None] * most_nodes + node).flatten()
    layer.node_inputs.view(-1, by_row.shape[2]).index_copy_(0, places, by_row.flatten(0, 1))
