"""The cache of a DSpark drafter inside DeepSeek-V4: a ring buffer per row and layer.

The ring buffers hold vectors of decided tokens, made of the target's states. A block reads them and
its own slots, and leaves nothing.
"""

from dataclasses import dataclass

import torch

from outrider.kv.spans_of import spans_of
from outrider.models.deepseek_v4.compressed_cache import CompressedLayout
from outrider.models.deepseek_v4.compressed_plan import CompressedAttention, CompressedPlan
from outrider.ops.sparse.block_windows import fill_block_windows
from outrider.ops.sparse.compressed_index import CompressedIndex, CompressedSizes
from outrider.ops.sparse.ring_plan import QueryWindows
from outrider.ops.sparse.ring_tokens import RingPlan
from outrider.step.arena import Arena
from outrider.step.attention_backend import AttentionScope
from outrider.step.plan import AttentionPlan
from outrider.step.shape import StepShape


@dataclass(frozen=True, slots=True, kw_only=True)
class DSparkLayout(CompressedLayout):
    """Layers without compressed blocks. `window` is one more than the tokens that a block reads:
    it reads those before its first slot, and a query token elsewhere counts itself.
    """

    def attention(self) -> CompressedAttention:
        length = self.ring_length(self.window)
        return DSparkAttention(
            context=self.window - 1,
            sizes=CompressedSizes(window_ring_length=length, blocks=(), page_size=self.page_size),
            nodes=self.nodes,
        )


class DSparkAttention(CompressedAttention):
    """Plans catch-ups, which are chains, and blocks, which are not."""

    def __init__(
        self,
        *,
        context: int,  # tokens before a block that it reads
        sizes: CompressedSizes,
        nodes: int,
    ) -> None:
        super().__init__(window=context + 1, kinds=(), sizes=sizes, nodes=nodes)
        self._context = context
        self._length = sizes.window_ring_length

    def reserve(self, arena: Arena, largest: StepShape) -> None:
        super().reserve(arena, largest)
        num_slots = largest.rows * largest.nodes
        arena.reserve("dspark.sources", num_slots * (self._context + largest.nodes), torch.int64)

    def bind(self, arena: Arena, shape: StepShape) -> CompressedPlan:
        if not _is_block(shape):
            return super().bind(arena, shape)
        num, width = shape.num_query, self._context + shape.nodes
        window = QueryWindows(
            query_index=arena.view("compressed.query_index", num),
            owners=arena.view("compressed.owners", num),
            ring=RingPlan(
                sources=arena.view("dspark.sources", num, width),
                writes=arena.view("compressed.window.writes", num),
            ),
        )
        index = CompressedIndex(
            num_decode_query=shape.num_decode_query,
            pages=arena.view("compressed.pages", shape.rows, shape.pages),
            window=window,
            blocks=(),
        )
        return CompressedPlan(shape=shape, index=index)

    def fill(self, plan: AttentionPlan, scope: AttentionScope) -> None:
        assert isinstance(plan, CompressedPlan)
        if not _is_block(plan.shape):
            super().fill(plan, scope)
            return
        plan.index.pages.zero_()  # no layer has pages
        fill_block_windows(
            plan.index.window,
            spans_of(plan.shape, scope),
            window=self._context,
            length=self._length,
            table_rows=scope.page_table.shape[0],
        )


def _is_block(shape: StepShape) -> bool:
    """Whether the nodes of a shape are the slots of a block, which read each other."""
    return shape.tree.topk > 1
