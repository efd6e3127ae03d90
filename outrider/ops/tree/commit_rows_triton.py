"""Lengths and last tokens after a step, as in `commit_rows.py`, in one launch."""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.tree.draft_tree import VerifyResult
from outrider.ops.tree.plan_rows import ChunkRows, DecodeRows

_BLOCK = 128

# By argument index. Views into packed buffers have any alignment, and sizes change with the step:
# neither may compile the kernel again.
_POINTERS, _SIZES = range(10), range(10, 13)


@triton.jit(do_not_specialize=_SIZES, do_not_specialize_on_alignment=_POINTERS)
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
    num_decode,
    num_rows,
    most_emitted,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    item = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_decode = item < num_decode
    is_chunk = (item >= num_decode) & (item < num_rows)
    chunk = item - num_decode
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


def commit_rows_triton(
    decode: DecodeRows,
    verify_result: VerifyResult,
    chunk: ChunkRows,
    chunk_choice: torch.Tensor,  # [chunk.rows]
    *,
    lengths: torch.Tensor,  # [table_rows] written
    last_tokens: torch.Tensor,  # [table_rows] written
) -> None:
    """`commit_rows` in one launch. All tensors are int64."""
    num_accepted, emitted = verify_result.num_accepted, verify_result.emitted
    num_decode, num_chunks = num_accepted.shape[0], chunk.rows.shape[0]
    kernel: Any = _commit_kernel[(triton.cdiv(num_decode + num_chunks, _BLOCK),)]
    kernel(
        decode.rows,
        decode.lengths,
        num_accepted,
        emitted,
        chunk.rows,
        chunk.starts,
        chunk.counts,
        chunk_choice,
        lengths,
        last_tokens,
        num_decode,
        num_decode + num_chunks,
        emitted.shape[1],
        BLOCK=_BLOCK,
        PDL=overlap.is_on(num_accepted),
        **overlap.options(num_accepted),
    )
