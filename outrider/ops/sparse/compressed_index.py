"""What all layers of a step with compressed attention share: where to read, and where to write."""

from dataclasses import dataclass

import torch

from outrider.ops.sparse.ring_plan import QueryWindows
from outrider.ops.sparse.ring_tokens import RingPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlan:
    """The compressed blocks of one kind: those that may end in this step, and those visible."""

    ring: RingPlan  # a window per block that may end in this step
    starts: torch.Tensor  # [windows] int64 position of the block's first token
    targets: torch.Tensor  # [windows] int64 slot of its entry; 0, on page 0, if it does not end
    counts: torch.Tensor  # [num_query] int64 entries that each query token may read


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedIndex:
    """Indices into the pools, the same for all layers."""

    num_decode_query: int  # query tokens of chains; those of chunks follow
    pages: torch.Tensor  # [step_rows, pages] int64 of decode rows, then of chunks
    window: QueryWindows  # the sliding window of each query token
    blocks: tuple[BlockPlan, ...]  # one per kind of blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSizes:
    """Sizes of one kind of compressed blocks."""

    ratio: int  # tokens of a block
    ring_length: int  # length of the ring buffers of compressor states


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedSizes:
    """Sizes that the indices are made with."""

    window_ring_length: int  # length of the ring buffers of the sliding window
    blocks: tuple[BlockSizes, ...]  # one per kind of blocks
    page_size: int


def num_block_ends(ratio: int, *, rows: int, nodes: int, chunks: int, chunk_tokens: int) -> int:
    """The most blocks that can end in a step: `chunks` share `chunk_tokens`."""
    in_chunks = chunk_tokens // ratio + chunks if chunks else 0
    return rows * block_ends_per_row(ratio, nodes) + in_chunks


def block_ends_per_row(ratio: int, nodes: int) -> int:
    """The most blocks that a chain of nodes can end."""
    return -(-nodes // ratio)
