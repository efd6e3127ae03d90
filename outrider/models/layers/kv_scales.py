"""Scales of keys and values in a pool of codes: they move numbers into the range that codes have.

A pool holds vector / scale. Queries are multiplied by the scales of their keys, and what attention
read by the scales of the values, so no kernel of attention knows about scales. Scales are powers of
two: codes are floats, so others would be no more precise, and these are exact in every type.
"""

from dataclasses import dataclass
from typing import Protocol, Self

import torch


class KVScales(Protocol):
    """What is done besides attention over a pool of codes."""

    def shrink_(self, vectors: torch.Tensor) -> None:
        """Divide what is to be stored, [num_query, 2 * kv_heads, head_dim]: keys, then values."""
        ...

    def of_queries(self, queries: torch.Tensor) -> torch.Tensor: ...  # [num_query, heads, head_dim]

    def of_read(self, read: torch.Tensor) -> torch.Tensor: ...  # [num_query, heads, head_dim]


class NoScales:
    """All scales are 1."""

    def shrink_(self, vectors: torch.Tensor) -> None:
        pass

    def of_queries(self, queries: torch.Tensor) -> torch.Tensor:
        return queries

    def of_read(self, read: torch.Tensor) -> torch.Tensor:
        return read


NO_SCALES = NoScales()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadScales:
    """One scale per head of keys, and one per head of values."""

    shrink: torch.Tensor  # [2 * kv_heads, 1]
    keys: torch.Tensor  # [heads, 1] of the keys that each query head reads
    values: torch.Tensor  # [heads, 1]

    @classmethod
    def make(
        cls,
        keys: torch.Tensor,  # [kv_heads] positive
        values: torch.Tensor,  # [kv_heads]
        *,
        group: int,  # query heads of a key
        dtype: torch.dtype,
        device: torch.device,
    ) -> Self:
        """The next powers of two, so that nothing exceeds the range that a scale was made for."""
        both = torch.cat([keys, values]).double().log2().ceil().exp2().to(device, dtype)
        of_keys, of_values = (each.repeat_interleave(group)[:, None] for each in both.chunk(2))
        return cls(shrink=(1 / both)[:, None], keys=of_keys, values=of_values)

    def shrink_(self, vectors: torch.Tensor) -> None:
        vectors.mul_(self.shrink)

    def of_queries(self, queries: torch.Tensor) -> torch.Tensor:
        return queries * self.keys

    def of_read(self, read: torch.Tensor) -> torch.Tensor:
        return read * self.values
