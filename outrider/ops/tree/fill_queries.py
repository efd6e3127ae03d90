"""Tokens, positions and slots of a step's query tokens, and which of them are sampled."""

import torch

from outrider.ops.compiled.why_not_compiled import is_compiled
from outrider.ops.tree.draft_tree import DraftTree
from outrider.ops.tree.place_nodes import node_of_query
from outrider.ops.tree.plan_rows import (
    ChunkRows,
    DecodeRows,
    Queries,
    Sampled,
    page_slots,
)
from outrider.ops.tree.write_places import chunk_positions

_COMPILED = "outrider.ops.compiled.query_places"


def fill_queries(
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
    """Write every query token and every sampled one. Node n is stored at L + first_node + n.

    In a ragged step `queries.of_nodes` is written before (`place_nodes`), otherwise here.
    """
    if queries.tokens.is_cuda:
        from outrider.ops.tree.fill_queries_triton import fill_queries_triton

        fill = fill_queries_triton
    elif is_compiled(queries.tokens, _COMPILED):
        from outrider.ops.tree.fill_queries_compiled import fill_queries_compiled

        fill = fill_queries_compiled
    else:
        fill = fill_queries_reference
    fill(
        tree,
        decode,
        chunk,
        pages=pages,
        queries=queries,
        sampled=sampled,
        page_size=page_size,
        first_node=first_node,
    )


def fill_queries_reference(
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
    """The same in plain torch."""
    num_decode_query = queries.tokens.shape[0] - chunk.tokens.shape[0]
    is_ragged = num_decode_query < tree.tokens.numel()
    split = [num_decode_query, chunk.tokens.shape[0]]
    positions, chunk_positions = torch.split(queries.positions, split)
    slots, chunk_slots = torch.split(queries.slots, split)
    # A node is seen at its depth (siblings share a position) but stored at its own index.
    last_node = first_node + tree.tokens.shape[1]
    stored = decode.lengths[:, None] + torch.arange(first_node, last_node, device=slots.device)
    rows = decode.rows[:, None].expand_as(stored)
    seen = decode.lengths[:, None] + tree.depths
    node_slots = page_slots(pages, rows, stored, page_size)
    tokens, rows, seen, node_slots = (x.flatten() for x in (tree.tokens, rows, seen, node_slots))
    if is_ragged:
        node = node_of_query(queries.of_nodes, num_decode_query)
        is_real = tokens >= 0  # padding is row 0 at position 0
        rows, seen, node_slots = ((x * is_real)[node] for x in (rows, seen, node_slots))
        tokens = tokens[node]
    else:
        node = torch.arange(num_decode_query, device=slots.device)
        queries.of_nodes.copy_(node.view_as(queries.of_nodes))
    torch.cat([tokens, chunk.tokens], out=queries.tokens)
    queries.tokens.clamp_min_(0)  # an absent node runs as token 0; its result is not used
    positions.copy_(seen)
    slots.copy_(node_slots)
    if chunk.tokens.shape[0]:
        _place_chunks(chunk, pages, page_size, positions=chunk_positions, slots=chunk_slots)
    _fill_sampled(rows, chunk, queries, sampled)


def _place_chunks(
    chunk: ChunkRows,
    pages: torch.Tensor,  # [table_rows, max_pages]
    page_size: int,
    *,
    positions: torch.Tensor,  # [chunk.tokens] written
    slots: torch.Tensor,  # [chunk.tokens] written
) -> None:
    rows = chunk.rows[chunk.owners]
    positions.copy_(chunk_positions(chunk))
    slots.copy_(page_slots(pages, rows, positions, page_size))


def _fill_sampled(
    rows: torch.Tensor,  # [num_decode_query]
    chunk: ChunkRows,
    queries: Queries,
    sampled: Sampled,
) -> None:
    """Write the index, row and position of every sampled token."""
    num_decode_query = rows.shape[0]
    index = torch.arange(num_decode_query, device=sampled.index.device)
    if not chunk.rows.shape[0]:  # every query token is sampled
        sampled.index.copy_(index)
        sampled.rows.copy_(rows)
        torch.add(queries.positions, 1, out=sampled.positions)
        return
    ends = num_decode_query + _last_tokens(chunk)
    torch.cat([index, ends], out=sampled.index)
    torch.cat([rows, chunk.rows], out=sampled.rows)
    torch.add(queries.positions[sampled.index], 1, out=sampled.positions)


def _last_tokens(chunk: ChunkRows) -> torch.Tensor:  # [chunk.rows]
    """Index of each chunk's last token among the chunk tokens; padding has any valid index."""
    return (chunk.counts.cumsum(0) - 1).clamp_min(0)
