"""Fills the plan of ring buffers: one launch per ring buffer, one program per query token.

All tensors are int64 and contiguous.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.sparse.ring_plan import QueryWindows
from outrider.ops.sparse.step_spans import StepSpans

_MIN_CHUNKS = 16  # more than a step usually has

# Views into packed buffers lie at any address, and sizes change with the step.
ROWS = (
    "decode_rows", "decode_lengths", "chunk_rows", "chunk_starts", "chunk_counts",
)  # fmt: skip
TOKEN_SIZES = ["num_decode_query", "nodes", "first_node", "num_chunks", "num_slots"]


@triton.jit
def sources_of(position, row, start, first, num_slots, LENGTH: tl.constexpr):
    """Where the tokens at these positions of a row are read: its ring buffer, or this step."""
    offset = position - start
    slot = row * LENGTH + position % LENGTH
    return tl.where(position >= 0, tl.where(offset >= 0, num_slots + first + offset, slot), -1)


@triton.jit(
    do_not_specialize=TOKEN_SIZES,
    do_not_specialize_on_alignment=[
        *ROWS,
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
    saved_row = tl.where(offset >= count - LENGTH, row, 0)
    tl.store(writes + token, saved_row * LENGTH + position % LENGTH)
    if IS_WINDOW:
        step_row = tl.where(is_node, place.to(tl.int64), num_decode_query // nodes + owner)
        tl.store(query_index + token, token.to(tl.int64))
        tl.store(owners + token, step_row)
        channel = tl.arange(0, BLOCK)
        seen = position - (WINDOW - 1) + channel
        read_sources = sources_of(seen, row, start, first, num_slots, LENGTH)
        tl.store(
            sources + token.to(tl.int64) * WINDOW + channel, read_sources, mask=channel < WINDOW
        )
    else:
        tl.store(counts + token, (position + 1) // RATIO)


def fill_window_triton(
    plan: QueryWindows, step: StepSpans, *, length: int, table_rows: int
) -> None:
    """`fill_window` in one launch."""
    ring = plan.ring
    parts = (plan.query_index, plan.owners, ring.sources, ring.writes, ring.writes)
    window = ring.sources.shape[1]
    _fill_tokens(step, parts, window=window, ratio=0, length=length, num_slots=table_rows * length)


def fill_compressor_writes(
    step: StepSpans,
    *,
    writes: torch.Tensor,  # [num_query] written: where its compressor state is saved
    counts: torch.Tensor,  # [num_query] written: compressed entries that it may read
    ratio: int,
    length: int,
) -> None:
    """The parts of a plan of compressed blocks that are per query token."""
    parts = (writes, writes, writes, writes, counts)
    _fill_tokens(step, parts, window=0, ratio=ratio, length=length, num_slots=0)


def row_tensors(step: StepSpans) -> tuple[torch.Tensor, ...]:
    """The arguments that kernels call by the names in ROWS."""
    decode, chunk = step.decode, step.chunk
    return decode.rows, decode.lengths, chunk.rows, chunk.starts, chunk.counts


def chunk_block(step: StepSpans) -> int:
    """Chunks that a kernel looks through at once: a power of two that holds all of them."""
    return max(_MIN_CHUNKS, int(triton.next_power_of_2(step.num_chunks)))


def _fill_tokens(
    step: StepSpans,
    parts: tuple[torch.Tensor, ...],  # query_index, owners, sources, writes, counts
    *,
    window: int,  # 0: only writes and counts are filled
    ratio: int,
    length: int,
    num_slots: int,
) -> None:
    kernel: Any = _token_kernel[(parts[3].shape[0],)]
    kernel(
        *row_tensors(step),
        step.chunk.owners,
        *parts,
        step.num_decode_query,
        step.nodes,
        step.first_node,
        step.num_chunks,
        num_slots,
        WINDOW=window,
        LENGTH=length,
        RATIO=ratio,
        IS_WINDOW=window > 0,
        BLOCK=triton.next_power_of_2(max(window, 1)),
        CHUNKS=chunk_block(step),
        PDL=overlap.is_on(parts[3]),
        num_warps=1,
        **overlap.options(parts[3]),
    )
