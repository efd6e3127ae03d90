"""Paged KV storage on the device. No request has page 0: only padding writes and reads it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from outrider.config.engine_config import KVDtype
from outrider.ops.attention.kv_codes import as_moved
from outrider.step.zeroed_memory import zeroed
from outrider.wire.window_facts import NO_WINDOW, Window

_CODES = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """Sizes of a KV cache. The vectors of a token in one layer are contiguous.

    Usual attention stores the keys and then the values of its key-value heads; latent attention
    stores one vector that is both.
    """

    layers: int
    vectors: int  # of a token
    width: int  # of a vector
    page_size: int
    dtype: torch.dtype  # of activations
    kv_dtype: KVDtype = "auto"  # auto: the type of activations

    @property
    def stored(self) -> torch.dtype:
        """The type of what lies in pages."""
        return self.dtype if self.kv_dtype == "auto" else _CODES[self.kv_dtype]

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers."""
        token = self.vectors * self.width * self.stored.itemsize
        return self.layers * self.page_size * token


class PagePool(Protocol):
    """A cache with pages, and perhaps row state."""

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers."""
        ...

    @property
    def tensors(self) -> Iterator[torch.Tensor]:
        """Everything that the pool stores, in pages and per row."""
        ...

    @property
    def page_tensors(self) -> Iterator[torch.Tensor]:
        """What lies in pages: each tensor is [pages, ...]."""
        ...

    @property
    def row_tensors(self) -> Iterator[torch.Tensor]:
        """The row state: each tensor is [table_rows, ...]."""
        ...

    def resize(self, num_pages: int) -> None:
        """Replace all pages by that many zeroed ones, page 0 included, before any capture."""
        ...

    def clean(self, pages: torch.Tensor) -> None:  # [n] int64
        """Zero the pages."""
        ...


AnyPool = TypeVar("AnyPool", bound=PagePool)


class Layout(Protocol):
    """What every cache layout has; only the model and its pool use more."""

    @property
    def page_size(self) -> int: ...

    @property
    def dtype(self) -> torch.dtype: ...


class ModelPool(Protocol):
    """The cache of one model, as the layout of the model opens it in a page family."""

    @property
    def layout(self) -> Layout: ...


class KVPool:
    """Owns the memory of all layers' pages: `layers[i]` is [pages, page_size, vectors, width]."""

    def __init__(self, layout: KVLayout, *, num_pages: int, device: torch.device) -> None:
        self.layout = layout
        self._device = device
        self.resize(num_pages)

    @property
    def page_bytes(self) -> int:
        return self.layout.page_bytes

    @property
    def tensors(self) -> Iterator[torch.Tensor]:
        yield self.storage

    @property
    def page_tensors(self) -> Iterator[torch.Tensor]:
        yield from self.layers

    @property
    def row_tensors(self) -> Iterator[torch.Tensor]:
        yield from ()

    def clean(self, pages: torch.Tensor) -> None:  # [n] int64
        as_moved(self.storage).index_fill_(1, pages, 0)

    def resize(self, num_pages: int) -> None:
        layout = self.layout
        shape = (num_pages, layout.page_size, layout.vectors, layout.width)
        self.layers: tuple[torch.Tensor, ...] = ()
        self.storage = torch.empty(0, device=self._device)  # free the old pages first
        # Zeros, not empty: attention on a CPU is slower over keys that are not finite.
        self.storage = zeroed(layout.layers, *shape, dtype=layout.stored, device=self._device)
        self.layers = self.storage.unbind(0)


class PageFamily:
    """Owns the pools that share page ids: a page means the same place in all of them.

    The pool of layers that do not see whole texts has window pages, with ids of their own.
    """

    def __init__(self, *, num_pages: int, device: torch.device) -> None:
        self.num_pages = num_pages  # of each pool, page 0 included
        self.device = device
        self.window = NO_WINDOW  # what the layers with window pages see
        self._pools: list[PagePool] = []
        self._window_pools: list[KVPool] = []  # one at most: targets have them, drafters do not

    @property
    def page_bytes(self) -> int:
        """Bytes of one page in all pools together."""
        return sum(pool.page_bytes for pool in self._pools)

    @property
    def window_page_bytes(self) -> int:
        """Bytes of one window page."""
        return sum(pool.page_bytes for pool in self._window_pools)

    @property
    def tensors(self) -> Iterator[torch.Tensor]:
        """Everything that all pools store."""
        for pool in (*self._pools, *self._window_pools):
            yield from pool.tensors

    @property
    def page_tensors(self) -> Iterator[torch.Tensor]:
        """What all pools store in pages: each tensor is [pages, ...]."""
        for pool in self._pools:
            yield from pool.page_tensors

    @property
    def row_tensors(self) -> Iterator[torch.Tensor]:
        """What all pools store per row: each tensor is [table_rows, ...]."""
        for pool in self._pools:
            yield from pool.row_tensors

    def open(self, layout: KVLayout) -> KVPool:
        """A new pool of KV."""
        return self.adopt(KVPool(layout, num_pages=self.num_pages, device=self.device))

    def open_window(self, layout: KVLayout, *, window: Window) -> KVPool:
        """The pool of the layers whose queries see that much, with one page for now."""
        assert not self._window_pools, "there is one window in a model"
        self.window = window
        self._window_pools.append(KVPool(layout, num_pages=1, device=self.device))
        return self._window_pools[0]

    def adopt(self, pool: AnyPool) -> AnyPool:
        """The pool itself; from now on it is resized and cleaned with the others."""
        self._pools.append(pool)
        return pool

    def clean(
        self,
        pages: torch.Tensor,  # [n] int64
        window_pages: torch.Tensor,  # [n] int64
    ) -> None:
        """Zero the pages in every pool."""
        for pool in self._pools:
            pool.clean(pages)
        for own in self._window_pools:
            own.clean(window_pages)

    def resize(self, num_pages: int, num_window_pages: int = 1) -> None:
        """Give every pool that many pages, page 0 included."""
        self.num_pages = num_pages
        for pool in self._pools:
            pool.resize(num_pages)
        for own in self._window_pools:
            own.resize(num_window_pages)
