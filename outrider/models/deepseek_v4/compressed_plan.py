"""The plan of compressed attention: where windows are read, and where entries are written."""

from dataclasses import dataclass

import torch

from outrider.config.settings import MAX_PAGE
from outrider.kv.ring_plan import (
    RingPlan,
    StepRows,
    fill_owners,
    fill_sources,
    fill_writes,
    rows_on_gpu,
)
from outrider.models.deepseek_v4.compressed_cache import CompressedLayout
from outrider.models.deepseek_v4.compression import CompressedBlocks
from outrider.step.arena import Arena
from outrider.step.attention_backend import AttentionScope, Capabilities
from outrider.step.plan import AttentionPlan
from outrider.step.shape import StepShape

_ANY = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlan:
    """The blocks of one kind: which end in this step, and who sees how many."""

    ring: RingPlan  # a window per block that may end in this step
    starts: torch.Tensor  # [windows] int64 position of the block's first token
    targets: torch.Tensor  # [windows] int64 where its entry goes; 0, on page 0, if it does not end
    counts: torch.Tensor  # [num_query] int64 entries that each query token may see


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedPlan(AttentionPlan):
    """What all layers of a step share."""

    shape: StepShape
    query_index: torch.Tensor  # [num_query] int64 the query tokens themselves, counted
    owners: torch.Tensor  # [num_query] int64 row of the step each query token belongs to
    pages: torch.Tensor  # [step_rows, pages] int64, of uniform rows, then of chunks
    window: RingPlan  # a window per query token
    blocks: tuple[BlockPlan, ...]  # as the layout lists their kinds


class CompressedAttention:
    """Makes and fills plans over one layout. Nodes of a row are a chain: each has a position."""

    def __init__(self, layout: CompressedLayout, *, table_rows: int) -> None:
        self._layout = layout
        self._table_rows = table_rows

    @property
    def capabilities(self) -> Capabilities:
        """Any page size that holds whole blocks; the longest chain is what the rings are for."""
        return Capabilities(
            max_nodes=self._layout.nodes,
            chain_only=True,
            page_sizes=range(1, MAX_PAGE + 1),
            max_head_dim=_ANY,
            max_group=_ANY,
            max_latent=_ANY,
            needs_host_lengths=False,
        )

    def reserve(self, arena: Arena, largest: StepShape) -> None:
        query, rows = largest.num_query, largest.rows + largest.chunk.rows
        arena.reserve("compressed.numbers", query, torch.int64)
        arena.reserve("compressed.owners", query, torch.int64)
        arena.reserve("compressed.pages", rows * largest.pages, torch.int64)
        arena.reserve("compressed.window.sources", query * self._layout.window, torch.int64)
        arena.reserve("compressed.window.writes", query, torch.int64)
        for index, blocks in enumerate(self._layout.blocks):
            name, num = f"compressed.{index}", num_block_ends(blocks.ratio, largest)
            arena.reserve(f"{name}.sources", num * blocks.window, torch.int64)
            arena.reserve(f"{name}.writes", query, torch.int64)
            arena.reserve(f"{name}.starts", num, torch.int64)
            arena.reserve(f"{name}.targets", num, torch.int64)
            arena.reserve(f"{name}.counts", query, torch.int64)

    def bind(self, arena: Arena, shape: StepShape) -> CompressedPlan:
        rows, query = shape.rows + shape.chunk.rows, shape.num_query
        blocks = enumerate(self._layout.blocks)
        return CompressedPlan(
            shape=shape,
            query_index=arena.view("compressed.numbers", query),
            owners=arena.view("compressed.owners", query),
            pages=arena.view("compressed.pages", rows, shape.pages),
            window=RingPlan(
                sources=arena.view("compressed.window.sources", query, self._layout.window),
                writes=arena.view("compressed.window.writes", query),
            ),
            blocks=tuple(_bind_blocks(arena, index, kind, shape) for index, kind in blocks),
        )

    def fill(self, plan: AttentionPlan, scope: AttentionScope) -> None:
        assert isinstance(plan, CompressedPlan)
        if plan.owners.is_cuda:
            self.fill_on_gpu(plan, scope)
            return
        step = fill_owners(plan.shape, scope, query_index=plan.query_index, owners=plan.owners)
        columns = scope.page_table[:, : plan.shape.pages]
        plan.pages.copy_(columns.index_select(0, step.rows))
        self._fill_ring(plan.window, step, plan.owners, plan.owners, step.positions)
        for part, kind in zip(plan.blocks, self._layout.blocks, strict=True):
            self._fill_blocks(part, kind, step, plan, scope.page_table)

    def fill_on_gpu(self, plan: CompressedPlan, scope: AttentionScope) -> None:
        """The same in two launches, and two for every kind of blocks."""
        from outrider.ops.sparse import (
            ring_plan_triton as rings,  # a CPU installation has no Triton
        )

        table, step = scope.page_table, rows_on_gpu(plan.shape, scope)
        rings.fill_pages(step, table, plan.pages)
        window, layout = plan.window, self._layout
        rings.fill_window(
            step,
            query_index=plan.query_index,
            owners=plan.owners,
            sources=window.sources,
            writes=window.writes,
            length=layout.ring(layout.window),
            table_rows=self._table_rows,
        )
        for part, kind in zip(plan.blocks, layout.blocks, strict=True):
            length = layout.ring(kind.window)
            rings.fill_states(
                step, writes=part.ring.writes, counts=part.counts, ratio=kind.ratio, length=length
            )
            rings.fill_block_ends(
                step,
                table,
                sources=part.ring.sources,
                starts=part.starts,
                targets=part.targets,
                ratio=kind.ratio,
                length=length,
                page_size=layout.page_size,
            )

    def _fill_blocks(
        self,
        part: BlockPlan,
        kind: CompressedBlocks,
        step: StepRows,
        plan: CompressedPlan,
        page_table: torch.Tensor,  # [table_rows, max_pages]
    ) -> None:
        ratio, page_size = kind.ratio, self._layout.page_size
        owners, block, is_end = _block_ends(ratio, step, plan.shape)
        lasts = block * ratio + (ratio - 1)
        self._fill_ring(part.ring, step, plan.owners, owners, lasts)
        # What does not end is made of row 0's first slot, which is a number, and kept by nobody.
        part.ring.sources.mul_(is_end[:, None])
        torch.mul(block, ratio, out=part.starts)
        column = (part.starts // page_size).clamp_max(page_table.shape[1] - 1)
        page = page_table[step.rows[owners], column]
        entry = page * (page_size // ratio) + part.starts % page_size // ratio
        torch.mul(entry, is_end, out=part.targets)
        torch.div(step.positions + 1, ratio, rounding_mode="floor", out=part.counts)

    def _fill_ring(
        self,
        part: RingPlan,
        step: StepRows,
        token_owners: torch.Tensor,  # [num_query] row of the step
        owners: torch.Tensor,  # [windows] likewise
        lasts: torch.Tensor,  # [windows] position of each window's last token
    ) -> None:
        length = self._layout.ring(part.sources.shape[1])
        fill_sources(part, step, owners, lasts, length=length, table_rows=self._table_rows)
        fill_writes(part, step, token_owners, length=length)


def num_block_ends(ratio: int, shape: StepShape) -> int:
    """The most blocks that can end in a step of this shape."""
    chunk = shape.chunk
    in_chunks = chunk.tokens // ratio + chunk.rows if chunk.rows else 0
    return shape.rows * _block_ends_per_row(ratio, shape) + in_chunks


def _block_ends_per_row(ratio: int, shape: StepShape) -> int:
    return -(-shape.nodes // ratio)


def _bind_blocks(arena: Arena, index: int, kind: CompressedBlocks, shape: StepShape) -> BlockPlan:
    name, query, num = f"compressed.{index}", shape.num_query, num_block_ends(kind.ratio, shape)
    return BlockPlan(
        ring=RingPlan(
            sources=arena.view(f"{name}.sources", num, kind.window),
            writes=arena.view(f"{name}.writes", query),
        ),
        starts=arena.view(f"{name}.starts", num),
        targets=arena.view(f"{name}.targets", num),
        counts=arena.view(f"{name}.counts", query),
    )


def _block_ends(
    ratio: int, step: StepRows, shape: StepShape
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # [windows] each
    """Row of the step, number and truth of every block that may end in this step.

    A uniform row has as many places as its nodes can end blocks; chunks share theirs.
    """
    device, rows, places = step.rows.device, shape.rows, _block_ends_per_row(ratio, shape)
    before = step.starts // ratio  # [step_rows] blocks that ended before the step
    num = (step.starts + step.counts) // ratio - before
    place = torch.arange(rows * places, device=device)
    ends = num[rows:].cumsum(0)  # [chunk.rows]
    item = torch.arange(num_block_ends(ratio, shape) - rows * places, device=device)
    chunk = torch.searchsorted(ends, item, right=True).clamp_max(shape.chunk.rows - 1)
    rank = item - (ends - num[rows:])[chunk] if item.shape[0] else item
    owners = torch.cat([place // places, chunk + rows])
    index = torch.cat([place % places, rank])
    is_end = (index < num[owners]) & (step.rows[owners] > 0)
    return owners, before[owners] + index, is_end
