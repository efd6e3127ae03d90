"""The ranks that compute one model together, as the layers of a model see them."""

from typing import Protocol

import torch


class RankGroup(Protocol):
    """Every rank makes the same calls in the same order, with tensors of equal sizes.

    All ranks read the same bits, so whatever they decide from a result is the same everywhere.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def add_up_(self, x: torch.Tensor) -> None:
        """Replace `x` by the sum over all ranks, added in the order of ranks."""
        ...

    def join(self, x: torch.Tensor) -> torch.Tensor:  # [n, width] -> [n, size * width]
        """The columns of all ranks, side by side."""
        ...

    def copy_first_(self, x: torch.Tensor) -> None:
        """Replace `x` by that of rank 0."""
        ...

    def least(self, value: int) -> int:
        """The smallest value of all ranks. A host call, for use outside of steps."""
        ...


class OneRank:
    """A model in one process: nothing is exchanged."""

    rank = 0
    size = 1

    def add_up_(self, x: torch.Tensor) -> None:
        pass

    def join(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def copy_first_(self, x: torch.Tensor) -> None:
        pass

    def least(self, value: int) -> int:
        return value


ONE_RANK = OneRank()
