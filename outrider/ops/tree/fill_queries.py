"""Tokens, positions and slots of a step's query tokens, and which of them are sampled."""

import torch

from outrider.ops.tree.draft_tree import DraftTree
from outrider.ops.tree.plan_rows import (
    ChunkRows,
    DecodeRows,
    Queries,
    Sampled,
    chunk_offsets,
    page_slots,
)


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
    """Write every query token and every sampled one. Node n is stored at L + first_node + n."""
    if queries.tokens.is_cuda:
        from outrider.ops.tree.fill_queries_triton import fill_queries_triton

        fill = fill_queries_triton
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
    split = [tree.tokens.numel(), chunk.tokens.shape[0]]
    positions, chunk_positions = torch.split(queries.positions, split)
    slots, chunk_slots = torch.split(queries.slots, split)
    # A node is seen at its depth (siblings share a position) but stored at its own index.
    last_node = first_node + tree.tokens.shape[1]
    stored = decode.lengths[:, None] + torch.arange(first_node, last_node, device=slots.device)
    torch.cat([tree.tokens.flatten(), chunk.tokens], out=queries.tokens)
    queries.tokens.clamp_min_(0)  # an absent node runs as token 0; its result is not used
    positions.copy_((decode.lengths[:, None] + tree.depths).flatten())
    rows = decode.rows[:, None].expand_as(stored)
    slots.copy_(page_slots(pages, rows, stored, page_size).flatten())
    chunk_positions.copy_(chunk.starts[chunk.owners] + chunk_offsets(chunk))
    is_real = chunk.rows[chunk.owners] > 0
    chunk_positions.mul_(is_real)
    chunk_slots.copy_(page_slots(pages, chunk.rows[chunk.owners], chunk_positions, page_size))
    _fill_sampled(tree, decode, chunk, queries, sampled)


def _fill_sampled(
    tree: DraftTree, decode: DecodeRows, chunk: ChunkRows, queries: Queries, sampled: Sampled
) -> None:
    """Write the index, row and position of every sampled token."""
    num_decode_query, nodes = tree.tokens.numel(), tree.tokens.shape[1]
    index = torch.arange(num_decode_query, device=sampled.index.device)
    ends = num_decode_query + _last_tokens(chunk)
    torch.cat([index, ends], out=sampled.index)
    torch.cat([decode.rows.repeat_interleave(nodes), chunk.rows], out=sampled.rows)
    torch.add(queries.positions[sampled.index], 1, out=sampled.positions)


def _last_tokens(chunk: ChunkRows) -> torch.Tensor:  # [chunk.rows]
    """Index of each chunk's last token among the chunk tokens; padding has any valid index."""
    return (chunk.counts.cumsum(0) - 1).clamp_min(0)
