"""How a layer makes entries of blocks that end in a step, and which entries its queries read."""

from dataclasses import dataclass
from typing import Protocol

import torch

from outrider.kv.ring_plan import RingTokens
from outrider.models.deepseek_v4.compressed_cache import BlockStore, LayerStore
from outrider.models.deepseek_v4.compressed_plan import BlockPlan, CompressedPlan
from outrider.models.deepseek_v4.compression import CompressedBlocks
from outrider.models.deepseek_v4.v4_config import IndexConfig
from outrider.ops.norm_rope.partial_rope import TailRotation, VectorNorm, rotate_tail
from outrider.ops.sparse.sparse_attention import (
    ListedEntries,
    all_entries,
    no_entries,
    select_entries,
    selected_entries,
    store_entries,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class V4Step:
    """What all layers of one step share."""

    plan: CompressedPlan
    page_size: int
    in_window: TailRotation  # of query tokens, in layers without blocks
    in_blocks: TailRotation  # of query tokens, in layers with blocks
    at_starts: tuple[TailRotation, ...]  # of the blocks of each kind that may end in this step


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockInputs:
    """What a layer's maps made of the query tokens, beside queries and vectors."""

    state: torch.Tensor  # [num_query, state_width]
    index: torch.Tensor  # [num_query, index heads * index width] to match keys of entries
    weights: torch.Tensor  # [num_query, index heads]


class BlockReader(Protocol):
    """Updates the blocks of a layer and says which of their entries each query token reads."""

    def __call__(self, inputs: BlockInputs, store: LayerStore, step: V4Step) -> ListedEntries: ...

    def save(self, inputs: BlockInputs, store: LayerStore, step: V4Step) -> None:
        """Write the step's states to the ring, when nobody reads its windows any more."""
        ...


class NoBlockReader:
    """For a layer without blocks."""

    def __call__(self, inputs: BlockInputs, store: LayerStore, step: V4Step) -> ListedEntries:
        return no_entries(RingTokens(store.window, inputs.state), step.plan)

    def save(self, inputs: BlockInputs, store: LayerStore, step: V4Step) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Compressor:
    """What turns a window of states into an entry."""

    bias: torch.Tensor  # [window, width] float32
    norm: VectorNorm


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlace:
    """Which blocks a layer has."""

    kind: CompressedBlocks
    index: int  # of the kind in the layout, and so in every plan
    channels: int  # of a state that make the entry; what follows makes its key

    def part(self, step: V4Step) -> BlockPlan:
        return step.plan.blocks[self.index]

    def listed(self, pool: torch.Tensor, step: V4Step) -> ListedEntries:
        """All entries of the pool that each query token may see."""
        return all_entries(pool, step.plan, self.part(step), step.page_size // self.kind.ratio)

    def store(
        self, tokens: RingTokens, compressor: Compressor, step: V4Step, pool: torch.Tensor
    ) -> None:
        """Write what ends in this step."""
        rotation = step.at_starts[self.index]
        part, bias, norm = self.part(step), compressor.bias, compressor.norm
        store_entries(tokens, part, bias, norm, rotation, pool)


class DenseBlocks:
    """Every query token reads every entry before it."""

    def __init__(self, place: BlockPlace, compressor: Compressor) -> None:
        self._place = place
        self._compressor = compressor

    def __call__(self, inputs: BlockInputs, store: LayerStore, step: V4Step) -> ListedEntries:
        assert isinstance(store, BlockStore)
        place, channels = self._place, self._place.channels
        tokens = RingTokens(store.state[:, :channels], inputs.state[:, :channels])
        place.store(tokens, self._compressor, step, store.entries)
        return place.listed(store.entries, step)

    def save(self, inputs: BlockInputs, store: LayerStore, step: V4Step) -> None:
        assert isinstance(store, BlockStore)
        RingTokens(store.state, inputs.state).save(self._place.part(step).ring)


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
        tokens = RingTokens(store.state[:, channels:], inputs.state[:, channels:])
        place.store(tokens, self._keys, step, store.keys)
        heads = inputs.index.view(-1, config.heads, config.head_dim)
        query, keys = rotate_tail(heads, step.in_blocks), place.listed(store.keys, step)
        slots = select_entries(query, inputs.weights, keys, self._scale, config.top_k)
        return selected_entries(entries.pool, slots, step.plan, place.part(step))

    def save(self, inputs: BlockInputs, store: LayerStore, step: V4Step) -> None:
        self._dense.save(inputs, store, step)
