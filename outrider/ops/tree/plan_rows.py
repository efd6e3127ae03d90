"""The rows and query tokens of a step, as device tensors."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Queries:
    """The query tokens, flat. Padding has token 0 and slots on page 0, which no request owns."""

    tokens: torch.Tensor  # [num_query] int64
    positions: torch.Tensor  # [num_query] int64
    slots: torch.Tensor  # [num_query] int64, where the KV of each is written
    window_slots: torch.Tensor  # [num_query] in window pages; [0] where layers have the same pages
    of_nodes: torch.Tensor  # [rows, nodes] int64 query token of each node, -1 if it does not run
    adapters: torch.Tensor  # [num_query] int64 adapter slot of each; [0] in steps without adapters


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRows:
    """Rows that run one draft tree each. Padding is row 0."""

    rows: torch.Tensor  # [rows] int64 index into the device tables
    lengths: torch.Tensor  # [rows] int64 cached tokens: L, the position of node 0
    budgets: torch.Tensor  # [3, rows] int64 steps, topk and nodes of each row's own budget


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRows:
    """Rows that run a chunk of their prompt. Padding is row 0 with no tokens."""

    rows: torch.Tensor  # [chunk.rows] int64
    starts: torch.Tensor  # [chunk.rows] int64 cached tokens before the chunk
    counts: torch.Tensor  # [chunk.rows] int64 tokens of the chunk
    followers: torch.Tensor  # [chunk.rows] int64 the next token of the prompt, -1 at its end
    owners: torch.Tensor  # [chunk.tokens] int64 which chunk each flat token belongs to
    tokens: torch.Tensor  # [chunk.tokens] int64


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """The query tokens that choose a next token: all nodes of all decode rows, then chunk ends."""

    index: torch.Tensor  # [num_sampled] int64 into the flat query tokens
    rows: torch.Tensor  # [num_sampled] int64 into the device tables
    positions: torch.Tensor  # [num_sampled] int64 absolute position of the token being chosen


def chunk_offsets(chunk: ChunkRows) -> torch.Tensor:  # [chunk.tokens]
    """Index of each flat chunk token inside its own chunk."""
    first = chunk.counts.cumsum(0) - chunk.counts  # [chunk.rows]
    flat = torch.arange(chunk.owners.shape[0], device=first.device)
    return flat - first[chunk.owners]


def chunk_nexts(chunk: ChunkRows) -> torch.Tensor:  # [chunk.tokens]
    """The token of the prompt after each flat chunk token, -1 at the end of the prompt."""
    is_end = chunk_offsets(chunk) + 1 == chunk.counts[chunk.owners]
    return torch.where(is_end, chunk.followers[chunk.owners], chunk.tokens.roll(-1))


def next_tokens(chunk: ChunkRows, choice: torch.Tensor) -> torch.Tensor:  # [chunk.tokens]
    """The token after each chunk token. At the end of the prompt it is the target's `choice`."""
    after_chunk = torch.where(chunk.followers < 0, choice, chunk.followers)  # [chunk.rows]
    is_end = chunk_offsets(chunk) == chunk.counts[chunk.owners] - 1
    return torch.where(is_end, after_chunk[chunk.owners], chunk.tokens.roll(-1))


def page_slots(
    pages: torch.Tensor,  # [table_rows, max_pages]
    rows: torch.Tensor,
    positions: torch.Tensor,
    page_size: int,
) -> torch.Tensor:
    """The slot of each (row, position) in the pool; rows and positions have one shape."""
    page = pages[rows, positions // page_size]
    return page * page_size + positions % page_size
