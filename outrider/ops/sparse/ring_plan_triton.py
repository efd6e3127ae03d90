"""The parts of plans about what lives in rows, as `models/deepseek_v4/compressed_plan.py` and `recurrent.py` say.

Kinds of launches: one per ring for its query tokens, one per kind of blocks for those that may end
in the step, one for the pages of all rows, one for their states. All is int64 and contiguous.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap

_CHUNKS = 16  # at least: more than a step usually has
_PAGES = 128  # columns copied by a program

# Views into packed buffers lie anywhere, sizes change with the step.
_ROWS = (
    "decode_rows", "decode_lengths", "chunk_rows", "chunk_starts", "chunk_counts",
)  # fmt: skip
_TOKEN_SIZES = ["num_decode_query", "nodes", "first_node", "num_chunks", "num_slots"]
_BLOCK_SIZES = [*_TOKEN_SIZES, "places", "table_stride", "max_pages"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """The rows of a step, as the host and the device tables say them."""

    decode: tuple[torch.Tensor, torch.Tensor]  # rows, lengths: [rows]
    chunk: tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # rows, starts, counts: [chunk.rows]
    owners: torch.Tensor  # [chunk.tokens] chunk of each chunk token
    nodes: int  # of each uniform row
    first_node: int  # nodes of a draft round that are stored before them

    @property
    def num_decode_query(self) -> int:
        return self.decode[0].shape[0] * self.nodes

    @property
    def num_chunks(self) -> int:
        return self.chunk[0].shape[0]

    @property
    def chunk_block(self) -> int:
        return max(_CHUNKS, int(triton.next_power_of_2(self.num_chunks)))


@triton.jit
def _sources(position, row, start, first, num_slots, LENGTH: tl.constexpr):
    """Where the tokens at these positions of a row are read: in its ring, or in this step."""
    offset = position - start
    kept = row * LENGTH + position % LENGTH
    return tl.where(position >= 0, tl.where(offset >= 0, num_slots + first + offset, kept), -1)


@triton.jit(
    do_not_specialize=_TOKEN_SIZES,
    do_not_specialize_on_alignment=[
        *_ROWS,
        "chunk_owners",
        "owners",
        "sources",
        "writes",
        "counts",
    ],
)
def _token_kernel(
    decode_rows, decode_lengths, chunk_rows, chunk_starts, chunk_counts, chunk_owners,
    query_index, owners, sources, writes, counts,
    num_decode_query, nodes, first_node, num_chunks, num_slots,
    WINDOW: tl.constexpr, LENGTH: tl.constexpr, RATIO: tl.constexpr, IS_WINDOW: tl.constexpr,
    BLOCK: tl.constexpr, CHUNKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    is_node = token < num_decode_query
    overlap.begin(PDL)
    place = token // nodes
    flat = token - num_decode_query
    owner = tl.load(chunk_owners + flat, mask=flat >= 0, other=0)
    index = tl.arange(0, CHUNKS)
    is_before = (index < num_chunks) & (index < owner)
    before = tl.sum(tl.load(chunk_counts + index, mask=is_before, other=0), 0)
    if is_node:
        row = tl.load(decode_rows + place)
        start = tl.load(decode_lengths + place) + first_node
        count = nodes.to(tl.int64)
        first = (place * nodes).to(tl.int64)
    else:
        row = tl.load(chunk_rows + owner)
        start = tl.load(chunk_starts + owner)
        count = tl.load(chunk_counts + owner)
        first = num_decode_query + before
    offset = token - first
    position = start + offset
    kept = tl.where(offset >= count - LENGTH, row, 0)
    tl.store(writes + token, kept * LENGTH + position % LENGTH)
    if IS_WINDOW:
        step_row = tl.where(is_node, place.to(tl.int64), num_decode_query // nodes + owner)
        tl.store(query_index + token, token.to(tl.int64))
        tl.store(owners + token, step_row)
        channel = tl.arange(0, BLOCK)
        seen = position - (WINDOW - 1) + channel
        found = _sources(seen, row, start, first, num_slots, LENGTH)
        tl.store(sources + token.to(tl.int64) * WINDOW + channel, found, mask=channel < WINDOW)
    else:
        tl.store(counts + token, (position + 1) // RATIO)


@triton.jit(
    do_not_specialize=_BLOCK_SIZES,
    do_not_specialize_on_alignment=[*_ROWS, "sources", "starts", "targets"],
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
    found = _sources(position, row, start, first, num_slots, LENGTH)
    found = tl.where(is_end, found, 0)
    tl.store(sources + window.to(tl.int64) * WINDOW + channel, found, mask=channel < WINDOW)


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


@triton.jit(
    do_not_specialize=["num_decode_query", "nodes", "num_chunks", "most"],
    do_not_specialize_on_alignment=[*_ROWS, "rows", "accepted_counts", "firsts", "counts"],
)
def _span_kernel(
    decode_rows, decode_lengths, chunk_rows, chunk_starts, chunk_counts, state_lengths,
    rows, accepted_counts, firsts, counts, num_decode_query, nodes, num_chunks, most,
    CHUNKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    step_row = tl.program_id(0)
    overlap.begin(PDL)
    num_rows = num_decode_query // nodes
    index = tl.arange(0, CHUNKS)
    is_before = (index < num_chunks) & (index < step_row - num_rows)
    before = tl.sum(tl.load(chunk_counts + index, mask=is_before, other=0), 0)
    if step_row < num_rows:
        row = tl.load(decode_rows + step_row)
        start = tl.load(decode_lengths + step_row)
        count = nodes.to(tl.int64)
        first = (step_row * nodes).to(tl.int64)
        after = start
    else:
        chunk = step_row - num_rows
        row = tl.load(chunk_rows + chunk)
        start = tl.load(chunk_starts + chunk)
        count = tl.load(chunk_counts + chunk)
        first = num_decode_query + before
        after = start + count
    kept = tl.minimum(tl.maximum(start - tl.load(state_lengths + row), 0), most)
    tl.store(rows + step_row, row)
    tl.store(accepted_counts + step_row, tl.where(start > 0, kept, -1))
    tl.store(firsts + step_row, first)
    tl.store(counts + step_row, count)
    tl.store(state_lengths + row, tl.where(row > 0, after, 0))


def fill_window(
    step: StepRows,
    *,
    query_index: torch.Tensor,  # [num_query] written
    owners: torch.Tensor,  # [num_query] written
    sources: torch.Tensor,  # [num_query, window] written
    writes: torch.Tensor,  # [num_query] written
    length: int,  # of the ring
    table_rows: int,
) -> None:
    """Whose each query token is, where its window is read, and where it is kept."""
    window = sources.shape[1]
    parts = (query_index, owners, sources, writes, writes)
    _fill_tokens(step, parts, window=window, ratio=0, length=length, table_rows=table_rows)


def fill_states(
    step: StepRows,
    *,
    writes: torch.Tensor,  # [num_query] written
    counts: torch.Tensor,  # [num_query] written
    ratio: int,
    length: int,
) -> None:
    """Where the state of each query token is kept, and how many entries it may see."""
    parts = (writes, writes, writes, writes, counts)
    _fill_tokens(step, parts, window=0, ratio=ratio, length=length, table_rows=0)


def _fill_tokens(
    step: StepRows,
    parts: tuple[torch.Tensor, ...],
    *,
    window: int,
    ratio: int,
    length: int,
    table_rows: int,
) -> None:
    kernel: Any = _token_kernel[(parts[3].shape[0],)]
    kernel(
        *step.decode,
        *step.chunk,
        step.owners,
        *parts,
        step.num_decode_query,
        step.nodes,
        step.first_node,
        step.num_chunks,
        table_rows * length,
        WINDOW=window,
        LENGTH=length,
        RATIO=ratio,
        IS_WINDOW=window > 0,
        BLOCK=triton.next_power_of_2(max(window, 1)),
        CHUNKS=step.chunk_block,
        PDL=overlap.is_on(parts[3]),
        num_warps=1,
        **overlap.options(parts[3]),
    )


def fill_spans(
    step: StepRows,
    spans: tuple[torch.Tensor, ...],  # rows, accepted_counts, firsts, counts: [step_rows], written
    state_lengths: torch.Tensor,  # [table_rows] tokens that states contain, advanced
    *,
    most: int,  # tokens that may be pending
) -> None:
    """What becomes of the states of the rows of a step."""
    kernel: Any = _span_kernel[(spans[0].shape[0],)]
    kernel(
        *step.decode,
        *step.chunk,
        state_lengths,
        *spans,
        step.num_decode_query,
        step.nodes,
        step.num_chunks,
        most,
        CHUNKS=step.chunk_block,
        PDL=overlap.is_on(state_lengths),
        num_warps=1,
        **overlap.options(state_lengths),
    )


def fill_block_ends(
    step: StepRows,
    page_table: torch.Tensor,  # [table_rows, max_pages]
    *,
    sources: torch.Tensor,  # [windows, window] written
    starts: torch.Tensor,  # [windows] written
    targets: torch.Tensor,  # [windows] written
    ratio: int,
    length: int,
    page_size: int,
) -> None:
    """Which blocks end in the step, what they are made of, and where their entries go."""
    num_windows, window = sources.shape
    if not num_windows:
        return
    kernel: Any = _block_end_kernel[(num_windows,)]
    kernel(
        *step.decode,
        *step.chunk,
        page_table,
        sources,
        starts,
        targets,
        step.num_decode_query,
        step.nodes,
        step.first_node,
        step.num_chunks,
        page_table.shape[0] * length,
        -(-step.nodes // ratio),
        page_table.stride(0),
        page_table.shape[1],
        WINDOW=window,
        LENGTH=length,
        RATIO=ratio,
        PAGE_SIZE=page_size,
        BLOCK=triton.next_power_of_2(window),
        CHUNKS=step.chunk_block,
        PDL=overlap.is_on(sources),
        num_warps=1,
        **overlap.options(sources),
    )


def fill_pages(step: StepRows, page_table: torch.Tensor, pages: torch.Tensor) -> None:
    """Write the pages of every row of the step, [step_rows, pages]."""
    kernel: Any = _page_kernel[(pages.shape[0], triton.cdiv(pages.shape[1], _PAGES))]
    kernel(
        step.decode[0],
        step.chunk[0],
        page_table,
        pages,
        step.decode[0].shape[0],
        page_table.stride(0),
        pages.shape[1],
        BLOCK=_PAGES,
        PDL=overlap.is_on(pages),
        num_warps=1,
        **overlap.options(pages),
    )
