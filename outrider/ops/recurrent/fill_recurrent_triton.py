"""Fills which recurrent states a step reads, in two launches. All tensors are int64."""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.recurrent.recurrent_rows import RecurrentRows
from outrider.ops.sparse.ring_plan_triton import (
    ROWS,
    chunk_block,
    fill_window_triton,
    row_tensors,
)
from outrider.ops.sparse.step_spans import StepSpans


@triton.jit(
    do_not_specialize=["num_decode_query", "nodes", "num_chunks", "most_nodes"],
    do_not_specialize_on_alignment=[*ROWS, "rows", "accepted_counts", "firsts", "counts"],
)
def _state_row_kernel(
    decode_rows, decode_lengths, chunk_rows, chunk_starts, chunk_counts, state_lengths,
    rows, accepted_counts, firsts, counts, num_decode_query, nodes, num_chunks, most_nodes,
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
    num_accepted = tl.minimum(tl.maximum(start - tl.load(state_lengths + row), 0), most_nodes)
    tl.store(rows + step_row, row)
    tl.store(accepted_counts + step_row, tl.where(start > 0, num_accepted, -1))
    tl.store(firsts + step_row, first)
    tl.store(counts + step_row, count)
    tl.store(state_lengths + row, tl.where(row > 0, after, 0))


def fill_recurrent_triton(
    plan: RecurrentRows,
    state_lengths: torch.Tensor,
    step: StepSpans,
    *,
    length: int,
    most_nodes: int,
) -> None:
    """`fill_recurrent` by kernels."""
    states = plan.states
    fill_window_triton(plan.window, step, length=length, table_rows=state_lengths.shape[0])
    kernel: Any = _state_row_kernel[(states.rows.shape[0],)]
    kernel(
        *row_tensors(step),
        state_lengths,
        states.rows,
        states.accepted_counts,
        states.firsts,
        states.counts,
        step.num_decode_query,
        step.nodes,
        step.num_chunks,
        most_nodes,
        CHUNKS=chunk_block(step),
        PDL=overlap.is_on(state_lengths),
        num_warps=1,
        **overlap.options(state_lengths),
    )
