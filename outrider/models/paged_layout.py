"""The cache of a model whose layers all attend: pages of KV, and no row state."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outrider.kv.kv_pool import KVLayout, KVPool
from outrider.models.cache_layout import CacheRoom, OpenCache
from outrider.models.model_config import AnyAttention
from outrider.step.attention_backend import AttentionBackend
from outrider.wire.window_facts import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedLayout:
    """Pages of KV on the shared backend."""

    kv: KVLayout
    attention: AnyAttention
    windows: tuple[Window, ...] = ()  # of each layer, where they are known

    @property
    def page_size(self) -> int:
        return self.kv.page_size

    @property
    def dtype(self) -> torch.dtype:
        return self.kv.dtype

    @property
    def row_bytes(self) -> int:
        return 0

    @property
    def heads(self) -> Sequence[AnyAttention]:
        return (self.attention,)

    def check(self) -> None:
        pass  # the backend says which page sizes it has

    def open(self, room: CacheRoom) -> OpenCache[KVPool, AttentionBackend]:
        return OpenCache(pool=room.pages.open(self.kv), attention=room.backend)


def paged_layout(
    attention: AnyAttention,
    *,
    layers: int,
    page_size: int,
    dtype: torch.dtype,
    windows: tuple[Window, ...] = (),
) -> PagedLayout:
    """The layout of so many layers with the same heads."""
    kv = KVLayout(
        layers=layers,
        vectors=attention.vectors,
        width=attention.width,
        page_size=page_size,
        dtype=dtype,
    )
    return PagedLayout(kv=kv, attention=attention, windows=windows)
