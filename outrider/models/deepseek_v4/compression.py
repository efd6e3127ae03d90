"""How a layer compresses older tokens: one entry per block of tokens, or none. No torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NoBlocks:
    """The layer reads its sliding window alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedBlocks:
    """The layer compresses every block of `ratio` tokens to one entry."""

    ratio: int
    is_overlapping: bool  # an entry is made of its own block and of the one before
    index_width: int  # of the key by which an entry is selected; 0 where all are read

    @property
    def window(self) -> int:
        """Tokens an entry is made of."""
        return self.ratio * (2 if self.is_overlapping else 1)

    def compressor_width(self, head_dim: int) -> int:
        """Channels of a compressor state: a value and a gate per channel of entry and key."""
        return 2 * (2 if self.is_overlapping else 1) * (head_dim + self.index_width)
