"""Which part of a stored tensor is read."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Cut:
    """Ranges along one dimension, joined in order. Without ranges: the whole tensor."""

    dim: int = 0
    ranges: tuple[tuple[int, int], ...] = ()  # first, and one past the last

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """That part of the tensor: a view if it is one range."""
        if not self.ranges:
            return tensor
        parts = [tensor.narrow(self.dim, first, last - first) for first, last in self.ranges]
        return parts[0] if len(parts) == 1 else torch.cat(parts, self.dim)


WHOLE = Cut()
