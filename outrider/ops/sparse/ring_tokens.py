"""Vectors of a row's last tokens: older ones in the row's ring buffer, new ones from this step.

A source names one vector: a slot of the ring buffer, past the last slot a query token, or ABSENT.
"""

from dataclasses import dataclass

import torch

ABSENT = -1  # a source before the beginning of the text


@dataclass(frozen=True, slots=True, kw_only=True)
class RingPlan:
    """Where windows of tokens are read, and where the query tokens are written."""

    sources: torch.Tensor  # [windows, window] int64 the tokens of each window in order
    writes: torch.Tensor  # [num_query] int64 slot of each query token; row 0: it is not needed


@dataclass(frozen=True, slots=True)
class RingTokens:
    """One vector per token: those in the ring buffers, and those of this step."""

    ring: torch.Tensor  # [slots, width]
    fresh: torch.Tensor  # [num_query, width]

    def read(self, sources: torch.Tensor) -> torch.Tensor:  # [n, window] -> [n, window, width]
        """The vectors of all sources; an absent source has an arbitrary vector."""
        num_slots, shape = self.ring.shape[0], (*sources.shape, self.ring.shape[1])
        old = self.ring.index_select(0, sources.clamp(0, num_slots - 1).flatten()).view(shape)
        fresh = self.fresh.index_select(0, (sources - num_slots).clamp_min(0).flatten()).view(shape)
        return torch.where((sources >= num_slots)[..., None], fresh, old)

    def save(self, plan: RingPlan) -> None:
        """Write the step's vectors to the ring buffers, after the last read of its windows."""
        self.ring.index_copy_(0, plan.writes, self.fresh)
