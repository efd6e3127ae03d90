"""The KV of accepted nodes moved to the front, as in `compact_kv.py`, in one launch."""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.tree.draft_tree import VerifyResult
from outrider.ops.tree.plan_rows import DecodeRows

_BLOCK = 2048
_DEPTHS = 16  # at least: more than most paths have

# By argument index. Views into packed buffers have any alignment, and sizes change with the step:
# neither may compile the kernel again.
_POINTERS, _SIZES = range(1, 6), range(6, 8)


@triton.jit(do_not_specialize=_SIZES, do_not_specialize_on_alignment=_POINTERS)
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
    num_moved = tl.load(num_accepted + place)
    is_accepted = (depth > 0) & (depth <= num_moved)
    node = tl.load(path + place * most_emitted + depth, mask=is_accepted, other=0)
    old = length + node
    new = length + depth
    old_page = tl.load(pages + row * page_stride + old // PAGE_SIZE, mask=is_accepted, other=0)
    new_page = tl.load(pages + row * page_stride + new // PAGE_SIZE, mask=is_accepted, other=0)
    source = old_page * PAGE_SIZE + old % PAGE_SIZE
    goal = new_page * PAGE_SIZE + new % PAGE_SIZE
    # Depth by depth: node indices on a path never fall, so no slot is read after it was written. A
    # slot that is read and later written belongs to the same thread both times.
    for step in range(1, num_moved.to(tl.int32) + 1):
        here = tl.sum(tl.where(depth == step, source, 0), axis=0)
        there = tl.sum(tl.where(depth == step, goal, 0), axis=0)
        moves = (column < width) & (here != there)
        values = tl.load(base + here * width + column, mask=moves)
        tl.store(base + there * width + column, values, mask=moves)


def compact_kv_triton(
    storage: torch.Tensor,  # [layers, pages, page_size, vectors, width], contiguous; written
    decode: DecodeRows,
    verify_result: VerifyResult,
    pages: torch.Tensor,  # [table_rows, max_pages]
) -> None:
    """`compact_kv` in one launch for all layers."""
    num_layers, _, page_size = storage.shape[:3]
    width, path = storage.stride(2), verify_result.path
    block = min(_BLOCK, triton.next_power_of_2(width))
    kernel: Any = _compact_kernel[(path.shape[0], num_layers, triton.cdiv(width, block))]
    kernel(
        storage,
        decode.rows,
        decode.lengths,
        path,
        verify_result.num_accepted,
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
