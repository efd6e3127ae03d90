"""A weight as rows of GGUF blocks: how its rows are stacked and reordered."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch

from outrider.ops.compiled.gguf_rows import GgufRows


@dataclass(frozen=True, slots=True)
class BlockWeight:
    """Rows of one kind, then rows of another, ...: files mix kinds, and projections are fused."""

    pieces: tuple[GgufRows, ...]  # of neighbouring outputs; neighbours differ in their kinds

    @property
    def shape(self) -> tuple[int, int]:
        return sum(len(piece.rows) for piece in self.pieces), self.pieces[0].shape[1]

    @property
    def device(self) -> torch.device:
        return self.pieces[0].rows.device

    def rows(self, places: torch.Tensor) -> "BlockWeight":  # [n] int64
        """Some outputs, in this order."""
        ends = torch.tensor([len(piece.rows) for piece in self.pieces]).cumsum(0)
        owners = torch.bucketize(places, ends, right=True)
        runs, counts = torch.unique_consecutive(owners, return_counts=True)
        picked, first = [], 0
        for owner, count in zip(map(int, runs), map(int, counts), strict=True):
            piece = self.pieces[owner]
            own = places[first : first + count] - (ends[owner] - len(piece.rows))
            picked.append(GgufRows(piece.name, piece.rows[own]))
            first += count
        return _joined(picked)

    def widen(self) -> torch.Tensor:  # [out, in] float32
        """The numbers that the blocks stand for."""
        return torch.cat([piece.parts().widen() for piece in self.pieces])

    def is_finite(self) -> bool:
        """Whether all scales are numbers."""
        heads = (head for piece in self.pieces for head in piece.heads)
        return all(bool(head.isfinite().all()) for head in heads)


def stack_blocks(weights: Sequence[BlockWeight]) -> BlockWeight:
    """One weight with the rows of all, which have as many inputs."""
    return _joined([piece for weight in weights for piece in weight.pieces])


def _joined(pieces: Sequence[GgufRows]) -> BlockWeight:
    """Neighbours of one kind become one piece."""
    runs = groupby(pieces, key=lambda piece: piece.name)
    return BlockWeight(
        tuple(GgufRows(name, torch.cat([each.rows for each in run])) for name, run in runs)
    )
