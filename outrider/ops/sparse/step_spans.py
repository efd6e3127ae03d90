"""Which tokens each row of a step runs. Decode rows come first, then chunks of prompts."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSpans:
    """Rows that run a chain of nodes each. Padding is row 0."""

    rows: torch.Tensor  # [rows] int64 in the device tables
    lengths: torch.Tensor  # [rows] int64 cached tokens
    nodes: int  # of each row
    first_node: int  # nodes that earlier steps of a draft round stored after `lengths`


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSpans:
    """Rows that run a chunk of their prompt. Padding is row 0 with no tokens."""

    rows: torch.Tensor  # [chunk.rows] int64
    starts: torch.Tensor  # [chunk.rows] int64 cached tokens
    counts: torch.Tensor  # [chunk.rows] int64 tokens of the chunk
    owners: torch.Tensor  # [chunk.tokens] int64 chunk of each token

    @property
    def offsets(self) -> torch.Tensor:  # [chunk.tokens]
        """Index of each token in its own chunk."""
        first = self.counts.cumsum(0) - self.counts
        flat = torch.arange(self.owners.shape[0], device=first.device)
        return flat - first[self.owners]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpans:
    """All rows of a step."""

    decode: DecodeSpans
    chunk: ChunkSpans

    @property
    def num_rows(self) -> int:
        """Decode rows."""
        return self.decode.rows.shape[0]

    @property
    def num_decode_query(self) -> int:
        """Query tokens of decode rows."""
        return self.num_rows * self.decode.nodes

    @property
    def num_chunks(self) -> int:
        return self.chunk.rows.shape[0]
