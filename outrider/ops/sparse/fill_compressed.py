"""Fills the indices of compressed attention for one step, after padding."""

from dataclasses import dataclass

import torch

from outrider.ops.sparse.compressed_index import (
    BlockPlan,
    BlockSizes,
    CompressedIndex,
    CompressedSizes,
    block_ends_per_row,
)
from outrider.ops.sparse.ring_plan import (
    QueryRows,
    fill_sources,
    fill_window_reference,
    fill_writes,
)
from outrider.ops.sparse.step_spans import StepSpans


@dataclass(frozen=True, slots=True, kw_only=True)
class _BlockEnds:
    """The blocks that may end in a step."""

    owners: torch.Tensor  # [windows] row of the step
    block: torch.Tensor  # [windows] index of the block in its row
    is_end: torch.Tensor  # [windows] whether it ends in this step


def fill_compressed(
    index: CompressedIndex,  # written
    step: StepSpans,
    page_table: torch.Tensor,  # [table_rows, max_pages] int64
    sizes: CompressedSizes,
) -> None:
    """Write every element of the indices."""
    if page_table.is_cuda:
        from outrider.ops.sparse.fill_compressed_triton import fill_compressed_triton

        fill_compressed_triton(index, step, page_table, sizes)
    else:
        fill_compressed_reference(index, step, page_table, sizes)


def fill_compressed_reference(
    index: CompressedIndex, step: StepSpans, page_table: torch.Tensor, sizes: CompressedSizes
) -> None:
    """The same in torch."""
    rows = fill_window_reference(
        index.window, step, length=sizes.window_ring_length, table_rows=page_table.shape[0]
    )
    columns = page_table[:, : index.pages.shape[1]]
    index.pages.copy_(columns.index_select(0, rows.rows))
    for plan, kind in zip(index.blocks, sizes.blocks, strict=True):
        ends = _block_ends(kind.ratio, rows, step, num_windows=plan.starts.shape[0])
        _fill_blocks(plan, kind, rows, ends, page_table, sizes.page_size)
        fill_writes(plan.ring, rows, index.window.owners, length=kind.ring_length)


def _fill_blocks(
    plan: BlockPlan,
    kind: BlockSizes,
    rows: QueryRows,
    ends: _BlockEnds,
    page_table: torch.Tensor,  # [table_rows, max_pages]
    page_size: int,
) -> None:
    ratio, owners, table_rows = kind.ratio, ends.owners, page_table.shape[0]
    lasts = ends.block * ratio + (ratio - 1)
    fill_sources(plan.ring, rows, owners, lasts, length=kind.ring_length, table_rows=table_rows)
    # A block that does not end reads slot 0 of row 0, which is finite, and writes to page 0.
    plan.ring.sources.mul_(ends.is_end[:, None])
    torch.mul(ends.block, ratio, out=plan.starts)
    column = (plan.starts // page_size).clamp_max(page_table.shape[1] - 1)
    page = page_table[rows.rows[owners], column]
    entry = page * (page_size // ratio) + plan.starts % page_size // ratio
    torch.mul(entry, ends.is_end, out=plan.targets)
    torch.div(rows.positions + 1, ratio, rounding_mode="floor", out=plan.counts)


def _block_ends(ratio: int, rows: QueryRows, step: StepSpans, *, num_windows: int) -> _BlockEnds:
    """The blocks that may end in this step.

    A decode row has as many places as its nodes can end blocks; chunks share theirs.
    """
    device, num_rows = rows.rows.device, step.num_rows
    places = block_ends_per_row(ratio, step.nodes)
    before = rows.starts // ratio  # [step_rows] blocks that ended before the step
    num = (rows.starts + rows.counts) // ratio - before
    place = torch.arange(num_rows * places, device=device)
    ends = num[num_rows:].cumsum(0)  # [chunk.rows]
    item = torch.arange(num_windows - num_rows * places, device=device)
    chunk = torch.searchsorted(ends, item, right=True).clamp_max(step.num_chunks - 1)
    rank = item - (ends - num[num_rows:])[chunk] if item.shape[0] else item
    owners = torch.cat([place // places, chunk + num_rows])
    index = torch.cat([place % places, rank])
    is_end = (index < num[owners]) & (rows.rows[owners] > 0)
    return _BlockEnds(owners=owners, block=before[owners] + index, is_end=is_end)
