"""Where the keys of decode rows are, once per step: the pages of each row, and the length and the
path of each node.
"""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from outrider.config.draft_config import MAX_NODES
from outrider.ops import dependent_launch as overlap

COPY_BLOCK = 1024  # page ids copied by one program

_MAX_NODES = tl.constexpr(MAX_NODES)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTexts:
    """What `trace_paths` writes: the texts of decode rows, all int32."""

    pages: torch.Tensor  # [rows, pages] of each row in order
    lengths: torch.Tensor  # [rows] cached tokens
    queries: torch.Tensor  # [rows * nodes] query token of each node, -1 if it does not run;
    # or nothing: the query tokens are the nodes
    limits: torch.Tensor  # [rows * nodes] length of each node's text, itself included
    tails: torch.Tensor  # [rows * nodes, 64] nodes of each path in order, then the others

    @property
    def nodes(self) -> int:
        """Of each row."""
        return self.limits.shape[0] // self.lengths.shape[0]

    @property
    def is_ragged(self) -> bool:
        return self.queries.shape[0] > 0

    def of_rows(self, rows: slice, tokens: slice) -> "DecodeTexts":
        """The same for some rows and their nodes."""
        return DecodeTexts(
            pages=self.pages[rows],
            lengths=self.lengths[rows],
            queries=self.queries[tokens],
            limits=self.limits[tokens],
            tails=self.tails[tokens],
        )


# Views into packed buffers have any alignment, and sizes change from step to step.
@triton.jit(
    do_not_specialize=[
        "rows", "lengths", "ancestors", "queries", "nodes", "num_pages", "row_stride", "node_stride"
    ]
)  # fmt: skip
def _fill_kernel(
    rows, lengths, ancestors, queries, table, pages, out_lengths, out_queries, limits, tails,
    nodes, num_pages, table_stride, row_stride, node_stride,
    BLOCK: tl.constexpr, RAGGED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    overlap.begin(PDL)
    row, part = tl.program_id(0), tl.program_id(1)
    column = part * BLOCK + tl.arange(0, BLOCK)
    inside = column < num_pages
    source = table + tl.load(rows + row) * table_stride + column
    page = tl.load(source, mask=inside, other=0).to(tl.int32)
    tl.store(pages + row.to(tl.int64) * num_pages + column, page, mask=inside)
    length = tl.load(lengths + row).to(tl.int32)
    tl.store(out_lengths + row, length)
    if part < nodes:
        mask = tl.load(ancestors + row * row_stride + part * node_stride)
        bit = tl.arange(0, _MAX_NODES)
        is_set = ((mask >> bit.to(tl.int64)) & 1).to(tl.int32)
        before = tl.cumsum(is_set, 0) - is_set
        depth = tl.sum(is_set, 0)
        # The path's nodes in order, then all others: every element of the tail is written.
        place = tl.where(is_set == 1, before, depth + bit - before)
        token = row * nodes + part
        tl.store(tails + token * _MAX_NODES + place, bit)
        tl.store(limits + token, length + depth)
        if RAGGED:
            tl.store(out_queries + token, tl.load(queries + token).to(tl.int32))


def trace_paths(
    rows: torch.Tensor,  # [rows] int64 index into the page table
    lengths: torch.Tensor,  # [rows] int64
    ancestors: torch.Tensor,  # [rows, nodes] int64, any strides
    page_table: torch.Tensor,  # [table_rows, max_pages] int64
    *,
    queries: torch.Tensor,  # [rows, nodes] int64 contiguous: those of a ragged step, or nothing
    out_pages: torch.Tensor,  # [rows, pages] int32
    out_lengths: torch.Tensor,  # [rows] int32
    out_queries: torch.Tensor,  # [rows * nodes] int32, or nothing
    limits: torch.Tensor,  # [rows * nodes] int32
    tails: torch.Tensor,  # [rows * nodes, 64] int32
) -> None:
    """Write what the layers of a step share: pages of rows, text lengths and paths of nodes."""
    num_rows, nodes, num_pages = rows.shape[0], ancestors.shape[1], out_pages.shape[1]
    kernel: Any = _fill_kernel[(num_rows, max(nodes, triton.cdiv(num_pages, COPY_BLOCK)))]
    kernel(
        rows,
        lengths,
        ancestors,
        queries,
        page_table,
        out_pages,
        out_lengths,
        out_queries,
        limits,
        tails,
        nodes,
        num_pages,
        page_table.stride(0),
        ancestors.stride(0),
        ancestors.stride(1),
        BLOCK=COPY_BLOCK,
        RAGGED=queries.shape[0] > 0,
        PDL=overlap.is_on(rows),
        **overlap.options(rows),
    )


@triton.jit
def slots_of(
    position, limit, length, tail, pages, PAGE_SIZE: tl.constexpr, ON_PATH: tl.constexpr
):  # fmt: skip
    """The slots of the keys at these positions, -1 at and past the limit."""
    inside = position < limit
    stored = position
    if ON_PATH:  # from `length` on, a position is a depth of the path
        depth = position - length
        node = tl.load(tail + depth, mask=inside & (depth >= 0), other=0)
        stored = tl.where(depth >= 0, length + node, position)
    page = tl.load(pages + stored // PAGE_SIZE, mask=inside, other=0)
    return tl.where(inside, page.to(tl.int64) * PAGE_SIZE + stored % PAGE_SIZE, -1)


@triton.jit
def path_slots(
    step, steps, first, begin, end, length, limits, tails, pages,
    PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Slots of a block of a node's path; step `i` is block `i % steps` of node `i // steps`."""
    node = first + step // steps
    position = begin + step % steps * BLOCK_N + tl.arange(0, BLOCK_N)
    limit = tl.minimum(tl.load(limits + node), end)
    return slots_of(position, limit, length, tails + node * _MAX_NODES, pages, PAGE_SIZE, True)
