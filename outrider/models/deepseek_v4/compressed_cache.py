"""The cache of compressed attention: pages of compressed entries, and ring buffers per row for the
sliding window and for blocks that have not ended.

Slot s of row r in ring buffers of length n is r * n + s; row 0 takes what padding writes.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from outrider.errors import ConfigError
from outrider.kv.ring_buffer import ring_length
from outrider.models.cache_layout import CacheRoom, OpenCache
from outrider.models.deepseek_v4.compressed_plan import CompressedAttention
from outrider.models.deepseek_v4.compression import CompressedBlocks, NoBlocks
from outrider.models.model_config import AnyAttention
from outrider.ops.sparse.compressed_index import BlockSizes, CompressedSizes
from outrider.step.zeroed_memory import zeroed


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedLayout:
    """Sizes of all layers' caches. `nodes` is the longest chain that one step may write."""

    layers: tuple[CompressedBlocks | NoBlocks, ...]
    head_dim: int
    window: int  # tokens of a query's sliding window, itself included
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
        """Bytes of one row's ring buffers over all layers."""
        channels = len(self.layers) * self.ring_length(self.window) * self.head_dim
        for layer in self.layers:
            if isinstance(layer, CompressedBlocks):
                channels += self.ring_length(layer.window) * layer.compressor_width(self.head_dim)
        return channels * self.dtype.itemsize

    @property
    def heads(self) -> Sequence[AnyAttention]:
        return ()  # compressed attention does not run on the shared backend

    def ring_length(self, window: int) -> int:
        """Length of the ring buffers from which windows of that many tokens are read."""
        return ring_length(window, self.nodes)

    def check(self) -> None:
        """Refuse pages that do not hold whole blocks."""
        ratios = sorted({blocks.ratio for blocks in self.blocks})
        if any(self.page_size % ratio for ratio in ratios):
            raise ConfigError(
                f"this model compresses blocks of {' and '.join(map(str, ratios))} tokens, and a "
                f"page of {self.page_size} does not hold whole ones; use "
                f"block_size={math.lcm(*ratios)}"
            )

    def open(self, room: CacheRoom) -> "OpenCache[CompressedPool, CompressedAttention]":
        pages = room.pages
        pool = CompressedPool(
            self, table_rows=room.table_rows, num_pages=pages.num_pages, device=pages.device
        )
        return OpenCache(pool=pages.adopt(pool), attention=self.attention())

    def attention(self) -> CompressedAttention:
        """The planner of attention over this cache."""
        sizes = CompressedSizes(
            window_ring_length=self.ring_length(self.window),
            blocks=tuple(
                BlockSizes(ratio=kind.ratio, ring_length=self.ring_length(kind.window))
                for kind in self.blocks
            ),
            page_size=self.page_size,
        )
        return CompressedAttention(
            window=self.window, kinds=self.blocks, sizes=sizes, nodes=self.nodes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowStore:
    """The cache of a layer without blocks."""

    window: torch.Tensor  # [slots, head_dim] ring buffers, row after row

    @property
    def ring_buffers(self) -> tuple[torch.Tensor, ...]:
        """The ring buffers."""
        return (self.window,)

    @property
    def paged(self) -> tuple[torch.Tensor, ...]:
        """The tensors that lie in pages."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStore:
    """The cache of a layer with blocks."""

    window: torch.Tensor  # [slots, head_dim]
    states: torch.Tensor  # [slots, compressor_width] ring buffers of compressor states
    entries: torch.Tensor  # [pages * page_size / ratio, head_dim]
    keys: torch.Tensor  # [pages * page_size / ratio, index_width]

    @property
    def ring_buffers(self) -> tuple[torch.Tensor, ...]:
        """The ring buffers."""
        return (self.window, self.states)

    @property
    def paged(self) -> tuple[torch.Tensor, ...]:
        """The tensors that lie in pages."""
        return (self.entries, self.keys)


LayerStore = WindowStore | BlockStore


class CompressedPool:
    """Owns the pages and the ring buffers of all layers."""

    def __init__(
        self, layout: CompressedLayout, *, table_rows: int, num_pages: int, device: torch.device
    ) -> None:
        self.layout = layout
        self._table_rows = table_rows
        self._device = device
        self._num_pages = 0
        self._ring_buffers = tuple(self._make_ring_buffers(layer) for layer in layout.layers)
        self.resize(num_pages)

    @property
    def page_bytes(self) -> int:
        return self.layout.page_bytes

    @property
    def tensors(self) -> Iterator[torch.Tensor]:
        for store in self.layers:
            yield from (*store.ring_buffers, *store.paged)

    @property
    def page_tensors(self) -> Iterator[torch.Tensor]:
        for store in self.layers:
            for part in store.paged:
                yield part.view(self._num_pages, part.shape[0] // self._num_pages, part.shape[1])

    @property
    def row_tensors(self) -> Iterator[torch.Tensor]:
        for store in self.layers:
            for ring_buffer in store.ring_buffers:
                yield ring_buffer.view(self._table_rows, -1, ring_buffer.shape[1])

    def resize(self, num_pages: int) -> None:
        self._num_pages = num_pages
        self.layers: tuple[LayerStore, ...] = ()  # free the old pages first
        self.layers = tuple(
            self._make_store(layer, ring_buffers)
            for layer, ring_buffers in zip(self.layout.layers, self._ring_buffers, strict=True)
        )

    def clean(self, pages: torch.Tensor) -> None:  # [n] int64
        """Zero the pages, and the ring buffers of all rows, which have ended."""
        for store in self.layers:
            for ring_buffer in store.ring_buffers:
                ring_buffer.zero_()
            for part in store.paged:
                per_page = part.shape[0] // self._num_pages
                part.view(self._num_pages, per_page, part.shape[1]).index_fill_(0, pages, 0)

    def _make_ring_buffers(self, layer: CompressedBlocks | NoBlocks) -> tuple[torch.Tensor, ...]:
        layout, rows = self.layout, self._table_rows
        window = self._zeros(rows * layout.ring_length(layout.window), layout.head_dim)
        if isinstance(layer, NoBlocks):
            return (window,)
        width = layer.compressor_width(layout.head_dim)
        return window, self._zeros(rows * layout.ring_length(layer.window), width)

    def _make_store(
        self, layer: CompressedBlocks | NoBlocks, ring_buffers: tuple[torch.Tensor, ...]
    ) -> LayerStore:
        if isinstance(layer, NoBlocks):
            return WindowStore(window=ring_buffers[0])
        num_entries = self._num_pages * self.layout.page_size // layer.ratio
        window, states = ring_buffers
        return BlockStore(
            window=window,
            states=states,
            entries=self._zeros(num_entries, self.layout.head_dim),
            keys=self._zeros(num_entries, layer.index_width),
        )

    def _zeros(self, *shape: int) -> torch.Tensor:
        # Zeros, not empty: padding computes with row 0, and its results should be finite.
        return zeroed(*shape, dtype=self.layout.dtype, device=self._device)
