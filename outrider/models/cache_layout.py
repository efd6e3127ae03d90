"""What a model caches, as the model itself declares it: pages per token, and state per row."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch

from outrider.kv.kv_pool import ModelPool, PageFamily
from outrider.models.model_config import AnyAttention
from outrider.step.attention_backend import AttentionBackend, AttentionPlanner

Pool = TypeVar("Pool", bound=ModelPool, covariant=True)
Planner = TypeVar("Planner", bound=AttentionPlanner, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRoom:
    """The page family, tables and backend that a cache is opened with."""

    pages: PageFamily
    table_rows: int  # rows of the device tables, row 0 included
    backend: AttentionBackend  # for attention over pages of KV


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCache(Generic[Pool, Planner]):
    """The cache of one model, and what plans its attention over that cache."""

    pool: Pool
    attention: Planner


class CacheLayout(Protocol[Pool, Planner]):
    """Sizes of a cache for one page size and the longest chain of nodes."""

    @property
    def page_size(self) -> int: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def row_bytes(self) -> int:
        """Bytes that each row has outside of pages; 0 without row state."""
        ...

    @property
    def heads(self) -> Sequence[AnyAttention]:
        """The attention that runs on the shared backend, which is sized for it."""
        ...

    def check(self) -> None:
        """Refuse a page size that this cache cannot have."""
        ...

    def open(self, room: CacheRoom) -> OpenCache[Pool, Planner]:
        """The cache with as many pages as the page family has for now."""
        ...
