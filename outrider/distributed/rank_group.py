"""The ranks that compute one model together, as the layers of a model see them."""

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertRanks:
    """The ranks among which the experts of every layer are divided, each expert whole."""

    group: "RankGroup"
    has_own_tokens: bool  # every rank has rows of its own; else all ranks have the same tokens


class RankGroup(Protocol):
    """Every rank makes the same calls in the same order, with tensors of equal sizes.

    All ranks read the same bits, so whatever they decide from a result is the same everywhere.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def experts(self) -> ExpertRanks | None:
        """Where the experts are, unless every rank of this group holds a share of each."""
        ...

    def add_up_(self, x: torch.Tensor) -> None:
        """Replace `x` by the sum over all ranks, added in the order of ranks."""
        ...

    def stack(self, x: torch.Tensor) -> torch.Tensor:  # [n, width] -> [size, n, width]
        """The tensors of all ranks."""
        ...

    def exchange(self, parts: torch.Tensor) -> torch.Tensor:  # [size, n, width] both
        """Give part r to rank r; returns what the ranks gave to this one."""
        ...

    def join(self, x: torch.Tensor) -> torch.Tensor:  # [n, width] -> [n, size * width]
        """The columns of all ranks, side by side."""
        ...

    def copy_first_(self, x: torch.Tensor) -> None:
        """Replace `x` by that of rank 0."""
        ...

    def take_largest_(self, x: torch.Tensor) -> None:
        """Replace every element of an int64 tensor by the largest of all ranks."""
        ...

    def least(self, value: int) -> int:
        """The smallest value of all ranks. A host call, for use outside of steps."""
        ...


class ProcessRanks(RankGroup, Protocol):
    """Ranks that are processes and run steps."""

    def expect_prompt_ranks(self) -> None:
        """From now on all ranks run the same steps: a rank that is late is stuck."""
        ...

    def end_step(self) -> None:
        """Raise if another rank made other collectives in this step, where that can be known."""
        ...


class OneRank:
    """Layers that one process computes alone; only its experts may be on other ranks."""

    rank = 0
    size = 1

    def __init__(
        self, experts: ExpertRanks | None = None, beside: "RankGroup | None" = None
    ) -> None:
        self.experts = experts
        self._beside = beside  # all ranks that run steps at the same time

    def add_up_(self, x: torch.Tensor) -> None:
        pass

    def stack(self, x: torch.Tensor) -> torch.Tensor:
        return x[None]

    def exchange(self, parts: torch.Tensor) -> torch.Tensor:
        return parts

    def join(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def copy_first_(self, x: torch.Tensor) -> None:
        pass

    def take_largest_(self, x: torch.Tensor) -> None:
        pass

    def least(self, value: int) -> int:
        return value if self._beside is None else self._beside.least(value)


ONE_RANK = OneRank()
