"""The outcome of a step, as `spec/commit.py` says it: row tables, and the KV of kept nodes."""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap

_BLOCK = 128
_KV_BLOCK = 2048
_DEPTHS = 16  # at least: more than most paths have

# By place among the arguments: views into packed buffers lie anywhere, sizes change with the step.
_COMMIT_POINTERS, _COMMIT_SIZES = range(10), range(10, 13)
_COMPACT_POINTERS, _COMPACT_SIZES = range(1, 6), range(6, 8)


@triton.jit(do_not_specialize=_COMMIT_SIZES, do_not_specialize_on_alignment=_COMMIT_POINTERS)
def _commit_kernel(
    decode_rows,
    decode_lengths,
    num_accepted,
    emitted,  # [rows, most_emitted]
    chunk_rows,
    chunk_starts,
    chunk_counts,
    chunk_choice,
    lengths,
    last_tokens,
    num_decode_query,
    num_rows,
    most_emitted,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    item = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_decode = item < num_decode_query
    is_chunk = (item >= num_decode_query) & (item < num_rows)
    chunk = item - num_decode_query
    overlap.begin(PDL)
    tip = tl.load(num_accepted + item, mask=is_decode, other=0)
    length = tl.load(decode_lengths + item, mask=is_decode, other=0) + tip + 1
    bonus = tl.load(emitted + item.to(tl.int64) * most_emitted + tip, mask=is_decode, other=0)
    start = tl.load(chunk_starts + chunk, mask=is_chunk, other=0)
    count = tl.load(chunk_counts + chunk, mask=is_chunk, other=0)
    choice = tl.load(chunk_choice + chunk, mask=is_chunk, other=0)
    decode_row = tl.load(decode_rows + item, mask=is_decode, other=0)
    chunk_row = tl.load(chunk_rows + chunk, mask=is_chunk, other=0)
    row = tl.where(is_decode, decode_row, chunk_row)
    is_real = row > 0  # row 0 stays empty
    tl.store(lengths + row, tl.where(is_decode, length, start + count), mask=is_real)
    tl.store(last_tokens + row, tl.where(is_decode, bonus, choice), mask=is_real)


def commit_rows(
    *,
    decode: tuple[torch.Tensor, torch.Tensor],  # rows, lengths: [rows] each
    num_accepted: torch.Tensor,  # [rows]
    emitted: torch.Tensor,  # [rows, most_emitted]
    chunk: tuple[torch.Tensor, ...],  # rows, starts, counts, choice: [chunk.rows] each
    table: tuple[torch.Tensor, torch.Tensor],  # lengths, last tokens: written
) -> None:
    """Lengths and last tokens after the step. All tensors are int64."""
    num_decode_query, num_chunks = num_accepted.shape[0], chunk[0].shape[0]
    kernel: Any = _commit_kernel[(triton.cdiv(num_decode_query + num_chunks, _BLOCK),)]
    kernel(
        *decode,
        num_accepted,
        emitted,
        *chunk,
        *table,
        num_decode_query,
        num_decode_query + num_chunks,
        emitted.shape[1],
        BLOCK=_BLOCK,
        PDL=overlap.is_on(num_accepted),
        **overlap.options(num_accepted),
    )


@triton.jit(do_not_specialize=_COMPACT_SIZES, do_not_specialize_on_alignment=_COMPACT_POINTERS)
def _compact_kernel(
    storage,  # [layers, pages, page_size, width]
    decode_rows,
    decode_lengths,
    path,  # [rows, most_emitted]
    num_accepted,
    pages,  # [table_rows, max_pages]
    most_emitted,
    page_stride,
    layer_stride,
    width,
    PAGE_SIZE: tl.constexpr,
    DEPTHS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    column = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    depth = tl.arange(0, DEPTHS)
    base = storage + tl.program_id(1).to(tl.int64) * layer_stride
    overlap.begin(PDL)
    row = tl.load(decode_rows + place)
    length = tl.load(decode_lengths + place)
    num_kept = tl.load(num_accepted + place)
    is_accepted = (depth > 0) & (depth <= num_kept)
    node = tl.load(path + place * most_emitted + depth, mask=is_accepted, other=0)
    old = length + node
    new = length + depth
    old_page = tl.load(pages + row * page_stride + old // PAGE_SIZE, mask=is_accepted, other=0)
    new_page = tl.load(pages + row * page_stride + new // PAGE_SIZE, mask=is_accepted, other=0)
    source = old_page * PAGE_SIZE + old % PAGE_SIZE
    goal = new_page * PAGE_SIZE + new % PAGE_SIZE
    # Depth by depth: a path never goes up, so no place is read after it was written, and a place
    # that is read and later written is so by the same thread.
    for step in range(1, num_kept.to(tl.int32) + 1):
        here = tl.sum(tl.where(depth == step, source, 0), axis=0)
        there = tl.sum(tl.where(depth == step, goal, 0), axis=0)
        moves = (column < width) & (here != there)
        values = tl.load(base + here * width + column, mask=moves)
        tl.store(base + there * width + column, values, mask=moves)


def compact(
    storage: torch.Tensor,  # [layers, pages, page_size, vectors, width], contiguous
    *,
    decode: tuple[torch.Tensor, torch.Tensor],  # rows, lengths: [rows] each
    path: torch.Tensor,  # [rows, most_emitted]
    num_accepted: torch.Tensor,  # [rows]
    pages: torch.Tensor,  # [table_rows, max_pages]
) -> None:
    """Move the KV of kept nodes to the front, in all layers at once."""
    num_layers, _, page_size = storage.shape[:3]
    width = storage.stride(2)
    block = min(_KV_BLOCK, triton.next_power_of_2(width))
    kernel: Any = _compact_kernel[(path.shape[0], num_layers, triton.cdiv(width, block))]
    kernel(
        storage,
        *decode,
        path,
        num_accepted,
        pages,
        path.shape[1],
        pages.stride(0),
        storage.stride(0),
        width,
        PAGE_SIZE=page_size,
        DEPTHS=max(_DEPTHS, triton.next_power_of_2(path.shape[1])),
        BLOCK=block,
        PDL=overlap.is_on(storage),
        **overlap.options(storage),
    )
