"""The query tokens and samples of a plan, as in `fill_queries.py`, in one launch.

All tensors are int64. Their last axis is contiguous. The rows of a tree may share memory, with a
stride of 0.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.tree.draft_tree import DraftTree
from outrider.ops.tree.plan_rows import ChunkRows, DecodeRows, Queries, Sampled

_BLOCK = 128
_CHUNKS = 16  # at least: more than a step usually has

# By argument index. Views into packed buffers have any alignment, and sizes change with the step:
# neither may compile the kernel again.
_POINTERS, _SIZES = range(17), range(17, 26)


@triton.jit(do_not_specialize=_SIZES, do_not_specialize_on_alignment=_POINTERS)
def _fill_kernel(
    node_tokens,  # [rows, nodes]
    node_depths,  # [rows, nodes]
    decode_rows,
    decode_lengths,
    chunk_rows,
    chunk_starts,
    chunk_counts,
    chunk_owners,
    chunk_tokens,
    pages,  # [table_rows, max_pages]
    tokens,
    positions,
    slots,
    of_nodes,  # [rows, nodes]; read if RAGGED, otherwise written
    index,
    rows,
    sampled_positions,
    token_stride,
    depth_stride,
    page_stride,
    num_nodes,
    num_decode_query,
    nodes,
    num_query,
    num_chunks,
    first_node,
    PAGE_SIZE: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr,
    RAGGED: tl.constexpr,
    PDL: tl.constexpr,
):
    # [0, num_nodes)         nodes
    # [num_nodes, num_items) chunk tokens
    # [num_items, ..)        the last token of each chunk once more, to be sampled
    item = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    num_items = num_nodes + num_query - num_decode_query
    is_node = item < num_nodes
    is_token = (item >= num_nodes) & (item < num_items)
    is_end = (item >= num_items) & (item < num_items + num_chunks)
    overlap.begin(PDL)

    place = item // nodes
    node = item % nodes
    length = tl.load(decode_lengths + place, mask=is_node, other=0)
    node_row = tl.load(decode_rows + place, mask=is_node, other=0)
    deep = place.to(tl.int64) * depth_stride + node
    depth = tl.load(node_depths + deep, mask=is_node, other=0)
    here = place.to(tl.int64) * token_stride + node
    node_token = tl.load(node_tokens + here, mask=is_node, other=0)
    query = item.to(tl.int64)
    if RAGGED:
        query = tl.load(of_nodes + item, mask=is_node, other=0)
        is_padding = is_node & (node_token < 0)  # as row 0 at position 0
        query = tl.where(is_node, query, item - num_nodes + num_decode_query)
        is_node = is_node & (query >= 0)
    else:
        is_padding = item < 0
        tl.store(of_nodes + item, query, mask=is_node)
    is_query = is_node | is_token

    chunk = tl.arange(0, CHUNKS)
    count = tl.load(chunk_counts + chunk, mask=chunk < num_chunks, other=0)
    is_before = chunk[None, :] <= (item - num_items)[:, None]  # [BLOCK, CHUNKS]
    last = tl.maximum(tl.sum(tl.where(is_before, count[None, :], 0), axis=1) - 1, 0)
    flat = tl.where(is_end, last, item - num_nodes)  # among the chunk tokens
    is_chunk = is_token | is_end
    owner = tl.load(chunk_owners + flat, mask=is_chunk, other=0)
    is_earlier = chunk[None, :] < owner[:, None]
    first = tl.sum(tl.where(is_earlier, count[None, :], 0), axis=1)
    owner_row = tl.load(chunk_rows + owner, mask=is_chunk, other=0)
    start = tl.load(chunk_starts + owner, mask=is_chunk, other=0)
    chunk_position = tl.where(owner_row > 0, start + flat - first, 0)
    chunk_token = tl.load(chunk_tokens + flat, mask=is_token, other=0)

    # A node is seen at its depth (siblings share a position) but stored at its own index.
    position = tl.where(is_node, length + depth, chunk_position)
    position = tl.where(is_padding, 0, position)
    stored = tl.where(is_node, length + first_node + node, chunk_position)
    stored = tl.where(is_padding, 0, stored)
    node_row = tl.where(is_padding, 0, node_row)
    row = tl.where(is_node, node_row, owner_row)
    page = tl.load(pages + row * page_stride + stored // PAGE_SIZE, mask=is_query, other=0)
    token = tl.maximum(tl.where(is_node, node_token, chunk_token), 0)
    tl.store(tokens + query, token, mask=is_query)
    tl.store(positions + query, position, mask=is_query)
    tl.store(slots + query, page * PAGE_SIZE + stored % PAGE_SIZE, mask=is_query)

    is_sampled = is_node | is_end
    end_row = tl.load(chunk_rows + (item - num_items), mask=is_end, other=0)
    sample = tl.where(is_end, item - num_items + num_decode_query, query)
    tl.store(index + sample, tl.where(is_end, num_decode_query + last, query), mask=is_sampled)
    tl.store(rows + sample, tl.where(is_end, end_row, node_row), mask=is_sampled)
    tl.store(sampled_positions + sample, position + 1, mask=is_sampled)


def fill_queries_triton(
    tree: DraftTree,
    decode: DecodeRows,
    chunk: ChunkRows,
    *,
    pages: torch.Tensor,  # [table_rows, max_pages]
    queries: Queries,  # written
    sampled: Sampled,  # written
    page_size: int,
    first_node: int,
) -> None:
    """`fill_queries` in one launch."""
    tokens, depths = tree.tokens, tree.depths
    num_query, num_chunks = queries.tokens.numel(), chunk.rows.numel()
    num_nodes, num_tokens = tokens.numel(), chunk.tokens.numel()
    num_items = num_nodes + num_tokens + num_chunks
    kernel: Any = _fill_kernel[(triton.cdiv(num_items, _BLOCK),)]
    kernel(
        tokens,
        depths,
        decode.rows,
        decode.lengths,
        chunk.rows,
        chunk.starts,
        chunk.counts,
        chunk.owners,
        chunk.tokens,
        pages,
        queries.tokens,
        queries.positions,
        queries.slots,
        queries.of_nodes,
        sampled.index,
        sampled.rows,
        sampled.positions,
        tokens.stride(0),
        depths.stride(0),
        pages.stride(0),
        num_nodes,
        num_query - num_tokens,
        tokens.shape[1],
        num_query,
        num_chunks,
        first_node,
        PAGE_SIZE=page_size,
        CHUNKS=max(_CHUNKS, triton.next_power_of_2(num_chunks)),
        BLOCK=_BLOCK,
        RAGGED=num_query - num_tokens < num_nodes,
        PDL=overlap.is_on(tokens),
        **overlap.options(tokens),
    )
