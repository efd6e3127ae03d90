"""Plans compressed attention: where windows are read, and where entries are written."""

from dataclasses import dataclass

import torch

from outrider.config.settings import MAX_PAGE
from outrider.kv.spans_of import spans_of
from outrider.models.deepseek_v4.compression import CompressedBlocks
from outrider.ops.sparse.compressed_index import (
    BlockPlan,
    CompressedIndex,
    CompressedSizes,
    num_block_ends,
)
from outrider.ops.sparse.fill_compressed import fill_compressed
from outrider.ops.sparse.ring_plan import QueryWindows
from outrider.ops.sparse.ring_tokens import RingPlan
from outrider.step.arena import Arena
from outrider.step.attention_backend import AttentionScope, Capabilities
from outrider.step.plan import AttentionPlan
from outrider.step.shape import StepShape

_ANY = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedPlan(AttentionPlan):
    """The part of compressed attention in a plan, shared by all layers."""

    shape: StepShape
    index: CompressedIndex


class CompressedAttention:
    """Makes and fills plans. The nodes of a row are a chain: each node has its own position."""

    def __init__(
        self,
        *,
        window: int,  # tokens of a sliding window
        kinds: tuple[CompressedBlocks, ...],
        sizes: CompressedSizes,
        nodes: int,  # of the longest chain
    ) -> None:
        self._window = window
        self._kinds = kinds
        self._sizes = sizes
        self._nodes = nodes

    @property
    def capabilities(self) -> Capabilities:
        """Any page size that holds whole blocks; chains as long as the ring buffers allow."""
        return Capabilities(
            max_nodes=self._nodes,
            chain_only=True,
            is_ragged=False,
            page_sizes=range(1, MAX_PAGE + 1),
            max_head_dim=_ANY,
            max_group=_ANY,
            max_latent=_ANY,
            needs_host_lengths=False,
        )

    def reserve(self, arena: Arena, largest: StepShape) -> None:
        query, rows = largest.num_query, largest.rows + largest.chunk.rows
        arena.reserve("compressed.query_index", query, torch.int64)
        arena.reserve("compressed.owners", query, torch.int64)
        arena.reserve("compressed.pages", rows * largest.pages, torch.int64)
        arena.reserve("compressed.window.sources", query * self._window, torch.int64)
        arena.reserve("compressed.window.writes", query, torch.int64)
        for index, kind in enumerate(self._kinds):
            name, num = f"compressed.{index}", _num_block_ends(kind, largest)
            arena.reserve(f"{name}.sources", num * kind.window, torch.int64)
            arena.reserve(f"{name}.writes", query, torch.int64)
            arena.reserve(f"{name}.starts", num, torch.int64)
            arena.reserve(f"{name}.targets", num, torch.int64)
            arena.reserve(f"{name}.counts", query, torch.int64)

    def bind(self, arena: Arena, shape: StepShape) -> CompressedPlan:
        rows, query = shape.rows + shape.chunk.rows, shape.num_query
        window = QueryWindows(
            query_index=arena.view("compressed.query_index", query),
            owners=arena.view("compressed.owners", query),
            ring=RingPlan(
                sources=arena.view("compressed.window.sources", query, self._window),
                writes=arena.view("compressed.window.writes", query),
            ),
        )
        kinds = enumerate(self._kinds)
        index = CompressedIndex(
            num_decode_query=shape.num_decode_query,
            pages=arena.view("compressed.pages", rows, shape.pages),
            window=window,
            blocks=tuple(_bind_blocks(arena, place, kind, shape) for place, kind in kinds),
        )
        return CompressedPlan(shape=shape, index=index)

    def fill(self, plan: AttentionPlan, scope: AttentionScope) -> None:
        assert isinstance(plan, CompressedPlan)
        step = spans_of(plan.shape, scope)
        fill_compressed(plan.index, step, scope.page_table, self._sizes)


def _num_block_ends(kind: CompressedBlocks, shape: StepShape) -> int:
    """The most blocks of a kind that can end in a step of this shape."""
    return num_block_ends(
        kind.ratio,
        rows=shape.rows,
        nodes=shape.nodes,
        chunks=shape.chunk.rows,
        chunk_tokens=shape.chunk.tokens,
    )


def _bind_blocks(arena: Arena, index: int, kind: CompressedBlocks, shape: StepShape) -> BlockPlan:
    name, query, num = f"compressed.{index}", shape.num_query, _num_block_ends(kind, shape)
    return BlockPlan(
        ring=RingPlan(
            sources=arena.view(f"{name}.sources", num, kind.window),
            writes=arena.view(f"{name}.writes", query),
        ),
        starts=arena.view(f"{name}.starts", num),
        targets=arena.view(f"{name}.targets", num),
        counts=arena.view(f"{name}.counts", query),
    )
