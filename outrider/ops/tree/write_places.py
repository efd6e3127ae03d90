"""Where the KV of query tokens is written: the slots of their positions in a row's pages."""

import torch

from outrider.ops.tree.place_nodes import node_of_query
from outrider.ops.tree.plan_rows import ChunkRows, DecodeRows, chunk_offsets, page_slots


def node_slots(
    decode: DecodeRows,
    of_nodes: torch.Tensor,  # [rows, nodes] query token of each node, -1 if it does not run
    *,
    pages: torch.Tensor,  # [table_rows, max_pages]
    page_size: int,
    first_node: int,
    num_query: int,  # of decode rows
) -> torch.Tensor:  # [num_query]
    """Node n of a row is stored at position L + first_node + n, whatever its depth."""
    nodes = of_nodes.shape[1]
    place = torch.arange(first_node, first_node + nodes, device=pages.device)
    stored = decode.lengths[:, None] + place  # [rows, nodes]
    rows = decode.rows[:, None].expand_as(stored)
    slots = page_slots(pages, rows, stored, page_size).flatten()
    return slots if num_query == slots.shape[0] else slots[node_of_query(of_nodes, num_query)]


def chunk_slots(
    chunk: ChunkRows,
    pages: torch.Tensor,  # [table_rows, max_pages]
    page_size: int,
) -> torch.Tensor:  # [chunk.tokens]
    rows = chunk.rows[chunk.owners]
    return page_slots(pages, rows, chunk_positions(chunk), page_size)


def chunk_positions(chunk: ChunkRows) -> torch.Tensor:  # [chunk.tokens]
    """The position of every token of a chunk; 0 for padding."""
    rows = chunk.rows[chunk.owners]
    return (chunk.starts[chunk.owners] + chunk_offsets(chunk)) * (rows > 0)
