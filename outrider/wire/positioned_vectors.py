"""Vectors of consecutive positions as plain bytes: they cross processes, and need no torch."""

from array import array
from dataclasses import dataclass, replace
from typing import Self

_ITEM_BYTES = 4  # float32


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionedVectors:
    """One vector per position, from `first` on."""

    first: int
    width: int  # channels of one
    values: bytes  # [positions, width] float32, little-endian

    def __len__(self) -> int:
        return len(self.values) // self._row_bytes if self.width else 0

    @property
    def _row_bytes(self) -> int:
        return _ITEM_BYTES * self.width

    @property
    def stop(self) -> int:
        """The position after the last."""
        return self.first + len(self)

    def row(self, index: int) -> bytes:
        return self.values[index * self._row_bytes : (index + 1) * self._row_bytes]

    def from_position(self, position: int) -> Self:
        """Those of this position and later ones."""
        skipped = max(position - self.first, 0)
        return replace(
            self, first=self.first + skipped, values=self.values[skipped * self._row_bytes :]
        )

    def upto(self, count: int) -> Self:
        """The first ones."""
        return replace(self, values=self.values[: max(count, 0) * self._row_bytes])

    def plus(self, other: Self) -> Self:
        """The sums of both, value by value, at our positions."""
        pairs = zip(array("f", self.values), array("f", other.values), strict=True)
        return replace(self, values=array("f", [a + b for a, b in pairs]).tobytes())

    def placed(self, first: int) -> Self:
        """The same at another position."""
        return replace(self, first=first)
