"""How a layer compresses the past: blocks of so many tokens each, or none. No torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NoBlocks:
    """The layer reads its window alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedBlocks:
    """The layer compresses every `ratio` tokens to one entry."""

    ratio: int
    is_overlapping: bool  # an entry is made of its own block and of the one before
    index_width: int  # of the key by which an entry is chosen; 0 where all are read

    @property
    def window(self) -> int:
        """Tokens an entry is made of."""
        return self.ratio * (2 if self.is_overlapping else 1)

    def compressor_width(self, head_dim: int) -> int:
        """What an open block keeps of a token: a value and a gate per lane of entry and key."""
        return 2 * (2 if self.is_overlapping else 1) * (head_dim + self.index_width)
