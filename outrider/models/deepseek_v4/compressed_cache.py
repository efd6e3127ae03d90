"""Storage of compressed attention: pages of block entries, and a ring per row for what is open.

Slot s of row r in a ring of length n is r * n + s; row 0 takes what padding writes.
"""

from dataclasses import dataclass

import torch

from outrider.kv.ring_buffer import ring_length
from outrider.models.deepseek_v4.compression import CompressedBlocks, NoBlocks


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedLayout:
    """Sizes of all layers' caches. `nodes` is the longest chain that one step may write."""

    layers: tuple[CompressedBlocks | NoBlocks, ...]
    head_dim: int
    window: int  # tokens a query sees as they are, itself included
    nodes: int
    page_size: int
    dtype: torch.dtype

    @property
    def blocks(self) -> tuple[CompressedBlocks, ...]:
        """The kinds of blocks that any layer has."""
        return tuple(
            dict.fromkeys(layer for layer in self.layers if isinstance(layer, CompressedBlocks))
        )

    @property
    def page_bytes(self) -> int:
        """Bytes of the entries of one page over all layers; at least 1, as pages are counted."""
        widths = (
            self.page_size // layer.ratio * (self.head_dim + layer.index_width)
            for layer in self.layers
            if isinstance(layer, CompressedBlocks)
        )
        return max(1, sum(widths) * self.dtype.itemsize)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's rings over all layers."""
        channels = len(self.layers) * self.ring(self.window) * self.head_dim
        for layer in self.layers:
            if isinstance(layer, CompressedBlocks):
                channels += self.ring(layer.window) * layer.compressor_width(self.head_dim)
        return channels * self.dtype.itemsize

    def ring(self, window: int) -> int:
        """Length of the ring from which windows of that many tokens are read."""
        return ring_length(window, self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowStore:
    """What a layer without blocks keeps."""

    window: torch.Tensor  # [slots, head_dim] of the rings, row after row


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStore:
    """What a layer with blocks keeps."""

    window: torch.Tensor  # [slots, head_dim]
    state: torch.Tensor  # [slots, state_width] rings of what open blocks are made of
    entries: torch.Tensor  # [pages * page_size / ratio, head_dim]
    keys: torch.Tensor  # [pages * page_size / ratio, index_width]


LayerStore = WindowStore | BlockStore


class CompressedPool:
    """Owns pages and rings of all layers."""

    def __init__(
        self, layout: CompressedLayout, *, table_rows: int, num_pages: int, device: torch.device
    ) -> None:
        self.layout = layout
        self._table_rows = table_rows
        self._device = device
        self._rings = tuple(self._make_rings(layer) for layer in layout.layers)
        self.resize(num_pages)

    @property
    def page_bytes(self) -> int:
        return self.layout.page_bytes

    def resize(self, num_pages: int) -> None:
        """Start anew with that many pages, page 0 included; nothing may be recorded yet."""
        self.layers: tuple[LayerStore, ...] = ()  # the old pages go before the new come
        self.layers = tuple(
            self._make_store(layer, rings, num_pages)
            for layer, rings in zip(self.layout.layers, self._rings, strict=True)
        )

    def clean(self, pages: torch.Tensor) -> None:  # [n] int64
        """Make the pages what they were at first, and all rings: no row lives on without them."""
        for layer, store in zip(self.layout.layers, self.layers, strict=True):
            store.window.zero_()
            if isinstance(store, BlockStore) and isinstance(layer, CompressedBlocks):
                store.state.zero_()
                for pool in (store.entries, store.keys):
                    per_page = self.layout.page_size // layer.ratio
                    pool.view(-1, per_page, pool.shape[1]).index_fill_(0, pages, 0)

    def scribble(self) -> None:
        """Fill every page and every ring with noise."""
        for store in self.layers:
            store.window.normal_()
            if isinstance(store, BlockStore):
                for part in (store.state, store.entries, store.keys):
                    part.normal_()

    def _make_rings(self, layer: CompressedBlocks | NoBlocks) -> tuple[torch.Tensor, ...]:
        layout, rows = self.layout, self._table_rows
        window = self._zeros(rows * layout.ring(layout.window), layout.head_dim)
        if isinstance(layer, NoBlocks):
            return (window,)
        width = layer.compressor_width(layout.head_dim)
        return window, self._zeros(rows * layout.ring(layer.window), width)

    def _make_store(
        self, layer: CompressedBlocks | NoBlocks, rings: tuple[torch.Tensor, ...], num_pages: int
    ) -> LayerStore:
        if isinstance(layer, NoBlocks):
            return WindowStore(window=rings[0])
        num_entries = num_pages * self.layout.page_size // layer.ratio
        window, state = rings
        return BlockStore(
            window=window,
            state=state,
            entries=self._zeros(num_entries, self.layout.head_dim),
            keys=self._zeros(num_entries, layer.index_width),
        )

    def _zeros(self, *shape: int) -> torch.Tensor:
        # Zeros, not empty: a masked key is multiplied by a zero weight, and 0 * NaN is NaN.
        return torch.zeros(shape, dtype=self.layout.dtype, device=self._device)
