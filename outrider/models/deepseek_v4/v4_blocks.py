"""How a layer makes entries of blocks that end in a step, and which entries its queries read."""

from dataclasses import dataclass
from typing import Protocol

import torch

from outrider.models.deepseek_v4.compressed_cache import BlockStore, LayerStore
from outrider.models.deepseek_v4.compression import CompressedBlocks
from outrider.models.deepseek_v4.v4_config import IndexConfig
from outrider.ops.norm_rope.partial_rope import TailRotation, rotate_tail
from outrider.ops.sparse.compress import Compressor, store_entries
from outrider.ops.sparse.compressed_index import BlockPlan, CompressedIndex
from outrider.ops.sparse.indexer import select_entries
from outrider.ops.sparse.listed_entries import (
    ListedEntries,
    all_entries,
    no_entries,
    selected_entries,
)
from outrider.ops.sparse.ring_tokens import RingTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class V4Step:
    """The indices and rotations that all layers of a step share."""

    index: CompressedIndex
    page_size: int
    in_window: TailRotation  # of query tokens, in layers without blocks
    in_blocks: TailRotation  # of query tokens, in layers with blocks
    at_starts: tuple[TailRotation, ...]  # of the blocks of each kind that may end in this step


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockInputs:
    """The outputs of a layer's projections for its blocks, per query token."""

    states: torch.Tensor  # [num_query, compressor_width] of the compressor
    index: torch.Tensor  # [num_query, index heads * index width] to match keys of entries
    weights: torch.Tensor  # [num_query, index heads]


class BlockReader(Protocol):
    """Updates the blocks of a layer and lists the entries that each query token reads."""

    def __call__(self, inputs: BlockInputs, store: LayerStore, step: V4Step) -> ListedEntries: ...

    def save(self, inputs: BlockInputs, store: LayerStore, step: V4Step) -> None:
        """Write the step's compressor states to the ring buffers, after all reads of the step."""
        ...


class NoBlockReader:
    """For a layer without blocks."""

    def __call__(self, inputs: BlockInputs, store: LayerStore, step: V4Step) -> ListedEntries:
        del inputs
        return no_entries(store.window, step.index)

    def save(self, inputs: BlockInputs, store: LayerStore, step: V4Step) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlace:
    """Which blocks a layer has."""

    kind: CompressedBlocks
    index: int  # of the kind in the layout, and so in every plan
    channels: int  # of a compressor state that make the entry; the others make its key

    def plan(self, step: V4Step) -> BlockPlan:
        return step.index.blocks[self.index]

    def listed(self, pool: torch.Tensor, step: V4Step) -> ListedEntries:
        """All entries of the pool that each query token may read."""
        return all_entries(pool, step.index, self.plan(step), step.page_size // self.kind.ratio)

    def store(
        self, tokens: RingTokens, compressor: Compressor, step: V4Step, pool: torch.Tensor
    ) -> None:
        """Write the entries of blocks that end in this step."""
        store_entries(tokens, self.plan(step), compressor, step.at_starts[self.index], pool)


class DenseBlocks:
    """Every query token reads every entry before it."""

    def __init__(self, place: BlockPlace, compressor: Compressor) -> None:
        self._place = place
        self._compressor = compressor

    def __call__(self, inputs: BlockInputs, store: LayerStore, step: V4Step) -> ListedEntries:
        assert isinstance(store, BlockStore)
        place, channels = self._place, self._place.channels
        tokens = RingTokens(store.states[:, :channels], inputs.states[:, :channels])
        place.store(tokens, self._compressor, step, store.entries)
        return place.listed(store.entries, step)

    def save(self, inputs: BlockInputs, store: LayerStore, step: V4Step) -> None:
        assert isinstance(store, BlockStore)
        RingTokens(store.states, inputs.states).save(self._place.plan(step).ring)


class SparseBlocks:
    """Every query token reads the entries whose keys match it best."""

    def __init__(
        self, place: BlockPlace, entries: Compressor, *, keys: Compressor, index: IndexConfig
    ) -> None:
        self._place = place
        self._dense = DenseBlocks(place, entries)
        self._keys = keys
        self._config = index
        self._scale = (index.heads * index.head_dim) ** -0.5

    def __call__(self, inputs: BlockInputs, store: LayerStore, step: V4Step) -> ListedEntries:
        assert isinstance(store, BlockStore)
        place, channels, config = self._place, self._place.channels, self._config
        entries = self._dense(inputs, store, step)
        tokens = RingTokens(store.states[:, channels:], inputs.states[:, channels:])
        place.store(tokens, self._keys, step, store.keys)
        heads = inputs.index.view(-1, config.heads, config.head_dim)
        query, keys = rotate_tail(heads, step.in_blocks), place.listed(store.keys, step)
        slots = select_entries(query, inputs.weights, keys, self._scale, config.top_k)
        return selected_entries(entries.pool, slots, step.index, place.plan(step))

    def save(self, inputs: BlockInputs, store: LayerStore, step: V4Step) -> None:
        self._dense.save(inputs, store, step)
