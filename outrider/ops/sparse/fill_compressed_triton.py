"""Fills the indices of compressed attention: two launches, and two for each kind of blocks.

All tensors are int64 and contiguous.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.sparse.compressed_index import (
    BlockPlan,
    BlockSizes,
    CompressedIndex,
    CompressedSizes,
    block_ends_per_row,
)
from outrider.ops.sparse.ring_plan_triton import (
    ROWS,
    TOKEN_SIZES,
    chunk_block,
    fill_compressor_writes,
    fill_window_triton,
    row_tensors,
    sources_of,
)
from outrider.ops.sparse.step_spans import StepSpans

_PAGES = 128  # columns copied by a program
_BLOCK_SIZES = [*TOKEN_SIZES, "places", "table_stride", "max_pages"]


@triton.jit(
    do_not_specialize=_BLOCK_SIZES,
    do_not_specialize_on_alignment=[*ROWS, "sources", "starts", "targets"],
)
def _block_end_kernel(
    decode_rows, decode_lengths, chunk_rows, chunk_starts, chunk_counts, page_table,
    sources, starts, targets,
    num_decode_query, nodes, first_node, num_chunks, num_slots, places, table_stride, max_pages,
    WINDOW: tl.constexpr, LENGTH: tl.constexpr, RATIO: tl.constexpr, PAGE_SIZE: tl.constexpr,
    BLOCK: tl.constexpr, CHUNKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    window = tl.program_id(0)
    overlap.begin(PDL)
    in_rows = num_decode_query // nodes * places
    index = tl.arange(0, CHUNKS)
    is_chunk = index < num_chunks
    all_starts = tl.load(chunk_starts + index, mask=is_chunk, other=0)
    all_counts = tl.load(chunk_counts + index, mask=is_chunk, other=0)
    ends = (all_starts + all_counts) // RATIO - all_starts // RATIO
    item = window - in_rows
    is_past = is_chunk & (tl.cumsum(ends, 0) <= item)  # chunks whose blocks all come before
    owner = tl.minimum(tl.sum(is_past.to(tl.int32), 0), tl.maximum(num_chunks - 1, 0))
    earlier = tl.sum(tl.where(index < owner, ends, 0), 0)
    if window < in_rows:
        place = window // places
        row = tl.load(decode_rows + place)
        start = tl.load(decode_lengths + place) + first_node
        count = nodes.to(tl.int64)
        first = (place * nodes).to(tl.int64)
        rank = (window % places).to(tl.int64)
    else:
        row = tl.load(chunk_rows + owner)
        start = tl.load(chunk_starts + owner)
        count = tl.load(chunk_counts + owner)
        first = num_decode_query + tl.sum(tl.where(index < owner, all_counts, 0), 0)
        rank = item - earlier
    before = start // RATIO
    is_end = (rank < (start + count) // RATIO - before) & (row > 0)
    begin = (before + rank) * RATIO
    tl.store(starts + window, begin)
    column = tl.minimum(begin // PAGE_SIZE, max_pages - 1)
    page = tl.load(page_table + row * table_stride + column)
    entry = page * (PAGE_SIZE // RATIO) + begin % PAGE_SIZE // RATIO
    tl.store(targets + window, tl.where(is_end, entry, 0))
    channel = tl.arange(0, BLOCK)
    position = begin + RATIO - WINDOW + channel
    read_sources = sources_of(position, row, start, first, num_slots, LENGTH)
    read_sources = tl.where(is_end, read_sources, 0)
    tl.store(sources + window.to(tl.int64) * WINDOW + channel, read_sources, mask=channel < WINDOW)


@triton.jit(
    do_not_specialize=["num_rows", "table_stride", "num_pages"],
    do_not_specialize_on_alignment=["decode_rows", "chunk_rows", "pages"],
)
def _page_kernel(
    decode_rows, chunk_rows, page_table, pages, num_rows, table_stride, num_pages,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    step_row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < num_pages
    overlap.begin(PDL)
    if step_row < num_rows:
        row = tl.load(decode_rows + step_row)
    else:
        row = tl.load(chunk_rows + (step_row - num_rows))
    page = tl.load(page_table + row * table_stride + column, mask=inside, other=0)
    tl.store(pages + step_row.to(tl.int64) * num_pages + column, page, mask=inside)


def fill_compressed_triton(
    index: CompressedIndex, step: StepSpans, page_table: torch.Tensor, sizes: CompressedSizes
) -> None:
    """`fill_compressed` by kernels."""
    _fill_pages(step, page_table, index.pages)
    table_rows = page_table.shape[0]
    fill_window_triton(index.window, step, length=sizes.window_ring_length, table_rows=table_rows)
    for plan, kind in zip(index.blocks, sizes.blocks, strict=True):
        fill_compressor_writes(
            step,
            writes=plan.ring.writes,
            counts=plan.counts,
            ratio=kind.ratio,
            length=kind.ring_length,
        )
        _fill_block_ends(step, page_table, plan, kind, sizes.page_size)


def _fill_block_ends(
    step: StepSpans,
    page_table: torch.Tensor,  # [table_rows, max_pages]
    plan: BlockPlan,  # written
    kind: BlockSizes,
    page_size: int,
) -> None:
    """Which blocks end in the step, which tokens they are made of, and where their entries go."""
    sources, ratio = plan.ring.sources, kind.ratio
    num_windows, window = sources.shape
    if not num_windows:
        return
    kernel: Any = _block_end_kernel[(num_windows,)]
    kernel(
        *row_tensors(step),
        page_table,
        sources,
        plan.starts,
        plan.targets,
        step.num_decode_query,
        step.nodes,
        step.first_node,
        step.num_chunks,
        page_table.shape[0] * kind.ring_length,
        block_ends_per_row(ratio, step.nodes),
        page_table.stride(0),
        page_table.shape[1],
        WINDOW=window,
        LENGTH=kind.ring_length,
        RATIO=ratio,
        PAGE_SIZE=page_size,
        BLOCK=triton.next_power_of_2(window),
        CHUNKS=chunk_block(step),
        PDL=overlap.is_on(sources),
        num_warps=1,
        **overlap.options(sources),
    )


def _fill_pages(step: StepSpans, page_table: torch.Tensor, pages: torch.Tensor) -> None:
    """Write the pages of every row of the step, [step_rows, pages]."""
    kernel: Any = _page_kernel[(pages.shape[0], triton.cdiv(pages.shape[1], _PAGES))]
    kernel(
        step.decode.rows,
        step.chunk.rows,
        page_table,
        pages,
        step.num_rows,
        page_table.stride(0),
        pages.shape[1],
        BLOCK=_PAGES,
        PDL=overlap.is_on(pages),
        num_warps=1,
        **overlap.options(pages),
    )
