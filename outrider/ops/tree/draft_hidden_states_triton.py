"""Hidden states of a draft model between its runs, as in `draft_hidden_states.py`.

Hidden states are of one type, contiguous along their width; indices are int64.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.tree.candidates import Frontier
from outrider.ops.tree.draft_tree import DraftTree, StepOutcome
from outrider.ops.tree.plan_rows import ChunkRows, DecodeRows

_BLOCK = 2048
_CHUNKS = 16  # at least: more than a step usually has


@triton.jit
def _copy(source, goal, width, block, BLOCK: tl.constexpr):
    column = block * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    tl.store(goal + column, tl.load(source + column, mask=inside), mask=inside)


# By argument index. Indices are views with any alignment, and sizes change with the step: neither
# may compile a kernel again.
_START_POINTERS, _START_SIZES = (0, 1, 2, 4, 5, *range(7, 12)), (12,)
_PARENT_POINTERS, _PARENT_SIZES = (1,), (3, 4)
_GATHER_POINTERS, _GATHER_SIZES = (*range(1, 9), 10, 11), range(14, 21)
_STORE_POINTERS, _STORE_SIZES = range(1, 5), range(8, 10)


@triton.jit(do_not_specialize=_START_SIZES, do_not_specialize_on_alignment=_START_POINTERS)
def _start_kernel(
    rows,
    lengths,
    last_tokens,
    states,  # [table_rows, width]
    first_lengths,  # [rows], written, as all below
    level_lengths,  # [rows]
    out_states,  # [rows, width]
    scores,
    numbers,
    zeros,
    positions,
    tokens,
    lead,
    width,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    overlap.begin(PDL)
    row = tl.load(rows + place)
    _copy(states + row * width, out_states + place * width, width, block, BLOCK)
    is_first = block == 0
    length = tl.load(lengths + place)
    level_length = length + lead
    tl.store(level_lengths + place, level_length, mask=is_first)
    tl.store(first_lengths + place, tl.maximum(level_length - 1, 0), mask=is_first)
    tl.store(scores + place, 0.0, mask=is_first)
    tl.store(numbers + place, -1, mask=is_first)
    tl.store(zeros + place, 0, mask=is_first)
    tl.store(positions + place, length + 1, mask=is_first)
    tl.store(tokens + place, tl.load(last_tokens + row), mask=is_first)


def start_round_triton(
    decode: DecodeRows,
    *,
    last_tokens: torch.Tensor,  # [table_rows]
    hidden_states: torch.Tensor,  # [table_rows, width]
    first_lengths: torch.Tensor,  # [rows] written
    level_lengths: torch.Tensor,  # [rows] written
    lead: int,
) -> tuple[Frontier, torch.Tensor]:  # and hidden states [rows, 1, width]
    """`start_round` in one launch."""
    num_rows, width = decode.rows.shape[0], hidden_states.shape[1]
    scores = decode.rows.new_empty(num_rows, 1, dtype=torch.float32)
    new = decode.rows.new_empty(4, num_rows, 1).unbind(0)
    out = hidden_states.new_empty(num_rows, 1, width)
    block = min(_BLOCK, triton.next_power_of_2(width))
    kernel: Any = _start_kernel[(num_rows, triton.cdiv(width, block))]
    kernel(
        decode.rows,
        decode.lengths,
        last_tokens,
        hidden_states,
        first_lengths,
        level_lengths,
        out,
        scores,
        *new,
        lead,
        width,
        BLOCK=block,
        PDL=overlap.is_on(hidden_states),
        **overlap.options(hidden_states),
    )
    numbers, zeros, positions, tokens = new
    nodes = DraftTree(tokens=tokens, parents=zeros, depths=zeros, ancestors=zeros)
    tips = Frontier(
        scores=scores, numbers=numbers, parent_tips=zeros, positions=positions, nodes=nodes
    )
    return tips, out


@triton.jit(do_not_specialize=_PARENT_SIZES, do_not_specialize_on_alignment=_PARENT_POINTERS)
def _parent_kernel(
    states, parent_tips, out, branches, topk, width, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    tip = tl.program_id(0).to(tl.int64)
    overlap.begin(PDL)
    source = tip // topk * branches + tl.load(parent_tips + tip)
    _copy(states + source * width, out + tip * width, width, tl.program_id(1), BLOCK)


def parent_hidden_states_triton(
    hidden_states: torch.Tensor,  # [rows, branches, width]
    parent_tips: torch.Tensor,  # [rows, topk]
) -> torch.Tensor:  # [rows, topk, width]
    """`parent_hidden_states` in one launch."""
    (rows, branches, width), topk = hidden_states.shape, parent_tips.shape[1]
    out = hidden_states.new_empty(rows, topk, width)
    block = min(_BLOCK, triton.next_power_of_2(width))
    kernel: Any = _parent_kernel[(rows * topk, triton.cdiv(width, block))]
    kernel(
        hidden_states,
        parent_tips,
        out,
        branches,
        topk,
        width,
        BLOCK=block,
        PDL=overlap.is_on(hidden_states),
        **overlap.options(hidden_states),
    )
    return out


@triton.jit(do_not_specialize=_GATHER_SIZES, do_not_specialize_on_alignment=_GATHER_POINTERS)
def _gather_kernel(
    aux_hidden_states,  # [num_query, width]
    node_queries,  # [rows, nodes]
    path,  # [rows, most_emitted]
    lengths,
    chunk_counts,
    chunk_owners,
    chunk_followers,
    chunk_tokens,
    chunk_choice,
    out,  # [rows * most_emitted + chunk.tokens, width], written, as all below
    new_lengths,
    new_tokens,
    width,
    aux_stride,
    nodes,
    most_emitted,
    num_decode_query,  # rows * most_emitted
    first_chunk,  # query token of the step
    num_chunks,
    lead,
    lookahead,  # 0 or 1
    CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    item = tl.program_id(0)
    block = tl.program_id(1)
    overlap.begin(PDL)
    place = item // most_emitted
    is_decode = item < num_decode_query
    node = tl.load(path + item, mask=is_decode, other=0)
    first = tl.load(node_queries + place * nodes, mask=is_decode, other=0)  # nodes follow it
    flat = item - num_decode_query
    source = tl.where(is_decode, first + node, first_chunk + flat)
    goal = out + item.to(tl.int64) * width
    _copy(aux_hidden_states + source * aux_stride, goal, width, block, BLOCK)

    starts_row = is_decode & (item % most_emitted == 0) & (block == 0)
    length = tl.load(lengths + place, mask=starts_row, other=0)
    tl.store(new_lengths + place, length + lead, mask=starts_row)

    # A head runs the token after its own: of the prompt, or at its end the target's choice.
    is_token = (item >= num_decode_query) & (block == 0)
    owner = tl.load(chunk_owners + flat, mask=is_token, other=0)
    chunk = tl.arange(0, CHUNKS)
    is_counted = (chunk < num_chunks) & (chunk <= owner) & is_token
    end = tl.sum(tl.load(chunk_counts + chunk, mask=is_counted, other=0), axis=0)
    is_end = (flat + 1 == end) & (lookahead == 1)
    follower = tl.load(chunk_followers + owner, mask=is_token & is_end, other=0)
    chosen = tl.load(chunk_choice + owner, mask=is_token & is_end, other=0)
    after = tl.where(follower < 0, chosen, follower)
    neighbour = tl.load(chunk_tokens + flat + lookahead, mask=is_token & (is_end == 0), other=0)
    tl.store(new_tokens + flat, tl.where(is_end, after, neighbour), mask=is_token)


def gather_accepted_triton(
    outcome: StepOutcome,
    decode: DecodeRows,
    chunk: ChunkRows,
    *,
    new_lengths: torch.Tensor,  # [rows] written
    new_tokens: torch.Tensor,  # [chunk.tokens] written
    lead: int,
    lookahead: int,
) -> torch.Tensor:  # [rows * most_emitted + chunk.tokens, aux_width]
    """`gather_accepted` in one launch."""
    states, path = outcome.aux_hidden_states, outcome.verify_result.path
    most_emitted, num_tokens, width = path.shape[1], new_tokens.shape[0], states.shape[1]
    out = states.new_empty(path.numel() + num_tokens, width)
    block = min(_BLOCK, triton.next_power_of_2(max(width, 1)))
    num_chunks = chunk.counts.shape[0]
    kernel: Any = _gather_kernel[(out.shape[0], max(triton.cdiv(width, block), 1))]
    kernel(
        states,
        outcome.node_queries,
        path,
        decode.lengths,
        chunk.counts,
        chunk.owners,
        chunk.followers,
        chunk.tokens,
        outcome.chunk_choice,
        out,
        new_lengths,
        new_tokens,
        width,
        states.stride(0),
        outcome.node_queries.shape[1],
        most_emitted,
        path.numel(),
        states.shape[0] - num_tokens,
        num_chunks,
        lead,
        lookahead,
        CHUNKS=max(_CHUNKS, triton.next_power_of_2(num_chunks)),
        BLOCK=block,
        PDL=overlap.is_on(states),
        **overlap.options(states),
    )
    return out


@triton.jit(do_not_specialize=_STORE_SIZES, do_not_specialize_on_alignment=_STORE_POINTERS)
def _store_kernel(
    after,  # [num_query, width]
    num_accepted,
    decode_rows,
    chunk_ends,
    chunk_rows,
    states,  # [table_rows, width], written
    width,
    stride,
    num_rows,
    most_emitted,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    item = tl.program_id(0)
    overlap.begin(PDL)
    is_decode = item < num_rows
    is_chunk = item >= num_rows
    chunk = item - num_rows
    tip = item * most_emitted + tl.load(num_accepted + item, mask=is_decode, other=0)
    end = tl.load(chunk_ends + chunk, mask=is_chunk, other=0)
    decode_row = tl.load(decode_rows + item, mask=is_decode, other=0)
    chunk_row = tl.load(chunk_rows + chunk, mask=is_chunk, other=0)
    row = tl.where(is_decode, decode_row, chunk_row)
    source = after + tl.where(is_decode, tip, end) * stride
    # Padding copies nothing.
    _copy(source, states + row * width, tl.where(row > 0, width, 0), tl.program_id(1), BLOCK)


def store_hidden_states_triton(
    after: torch.Tensor,  # [num_query, width]
    hidden_states: torch.Tensor,  # [table_rows, width] written; row 0 stays as it is
    *,
    num_accepted: torch.Tensor,  # [rows]
    decode_rows: torch.Tensor,  # [rows]
    most_emitted: int,  # query tokens of each decode row
    chunk_ends: torch.Tensor,  # [chunk.rows] or none: query tokens
    chunk_rows: torch.Tensor,  # [chunk.rows] or none
) -> None:
    """`store_hidden_states` in one launch."""
    num_rows, width = num_accepted.shape[0], hidden_states.shape[1]
    block = min(_BLOCK, triton.next_power_of_2(width))
    num_items = num_rows + chunk_ends.shape[0]
    kernel: Any = _store_kernel[(num_items, triton.cdiv(width, block))]
    kernel(
        after,
        num_accepted,
        decode_rows,
        chunk_ends,
        chunk_rows,
        hidden_states,
        width,
        after.stride(0),
        num_rows,
        most_emitted,
        BLOCK=block,
        PDL=overlap.is_on(hidden_states),
        **overlap.options(hidden_states),
    )
