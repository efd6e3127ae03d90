"""Paged KV storage on the device. Page 0 belongs to nobody: only padding writes and reads it."""

from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """Sizes of one layer's cache: what a token stores in a layer lies side by side.

    Usual attention stores the keys and then the values of its key-value heads, latent attention
    one vector that is both.
    """

    layers: int
    vectors: int  # of a token
    width: int  # of a vector
    page_size: int
    dtype: torch.dtype

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers."""
        token = self.vectors * self.width * self.dtype.itemsize
        return self.layers * self.page_size * token


class PagePool(Protocol):
    """Anything that is stored by pages."""

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers."""
        ...

    def resize(self, num_pages: int) -> None:
        """Start anew with that many pages, page 0 included; nothing may be recorded yet."""
        ...

    def clean(self, pages: torch.Tensor) -> None:  # [n] int64
        """Make the pages what they were at first."""
        ...

    def scribble(self) -> None:
        """Fill every page with noise."""
        ...


AnyPool = TypeVar("AnyPool", bound=PagePool)


class Layout(Protocol):
    """What everybody may know about a cache; the rest is between the model and its pool."""

    @property
    def page_size(self) -> int: ...

    @property
    def dtype(self) -> torch.dtype: ...


class ModelPool(PagePool, Protocol):
    """The cache of one model, of the kind that the model asks for."""

    @property
    def layout(self) -> Layout: ...


class KVPool:
    """Owns the pages of all layers: `layers[i]` is [pages, page_size, vectors, width]."""

    def __init__(self, layout: KVLayout, *, num_pages: int, device: torch.device) -> None:
        self.layout = layout
        self._device = device
        self.resize(num_pages)

    @property
    def page_bytes(self) -> int:
        return self.layout.page_bytes

    def clean(self, pages: torch.Tensor) -> None:  # [n] int64
        """Make the pages what they were at first."""
        self.storage.index_fill_(1, pages, 0)

    def scribble(self) -> None:
        """Fill every page with noise."""
        self.storage.normal_()

    def resize(self, num_pages: int) -> None:
        """Start anew with that many pages, page 0 included; nothing may be recorded yet."""
        layout = self.layout
        shape = (num_pages, layout.page_size, layout.vectors, layout.width)
        self.layers: tuple[torch.Tensor, ...] = ()
        self.storage = torch.empty(0, device=self._device)  # the old pages go before the new come
        # Zeros, not empty: a masked key is multiplied by a zero weight, and 0 * NaN is NaN.
        self.storage = torch.zeros(layout.layers, *shape, dtype=layout.dtype, device=self._device)
        self.layers = self.storage.unbind(0)


class PageFamily:
    """Owns the pools that share page ids: a page means the same place in all of them."""

    def __init__(self, *, num_pages: int, device: torch.device) -> None:
        self.num_pages = num_pages  # of each pool, page 0 included
        self._device = device
        self._pools: list[PagePool] = []

    @property
    def page_bytes(self) -> int:
        """What one page costs in all pools together."""
        return sum(pool.page_bytes for pool in self._pools)

    def open(self, layout: KVLayout) -> KVPool:
        """A further pool."""
        return self.adopt(KVPool(layout, num_pages=self.num_pages, device=self._device))

    def adopt(self, pool: AnyPool) -> AnyPool:
        """The pool itself, which has as many pages as the others from now on."""
        self._pools.append(pool)
        return pool

    def clean(self, pages: torch.Tensor) -> None:  # [n] int64
        """Make the pages what they were at first, in every pool."""
        for pool in self._pools:
            pool.clean(pages)

    def scribble(self) -> None:
        """Fill every page with noise."""
        for pool in self._pools:
            pool.scribble()

    def resize(self, num_pages: int) -> None:
        """Give every pool that many pages, page 0 included."""
        self.num_pages = num_pages
        for pool in self._pools:
            pool.resize(num_pages)
