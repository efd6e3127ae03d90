"""Fills the plan of ring buffers: where windows of the last tokens are read, and where new ones go.

A row runs tokens [start, start + count). Older tokens are in its ring buffer, at position % length.
Tokens of the step are read from the step, and are written to the ring buffer after all reads.
"""

from dataclasses import dataclass

import torch

from outrider.ops.sparse.ring_tokens import ABSENT, RingPlan
from outrider.ops.sparse.step_spans import StepSpans
from outrider.ops.tree.plan_rows import chunk_offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryWindows:
    """A window per query token, which ends with the token itself."""

    query_index: torch.Tensor  # [num_query] int64 0, 1, 2, ...
    owners: torch.Tensor  # [num_query] int64 row of the step that each query token belongs to
    ring: RingPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRows:
    """The rows of a step, decode rows and chunks alike, and their query tokens."""

    rows: torch.Tensor  # [step_rows] in the device tables
    starts: torch.Tensor  # [step_rows] cached tokens
    counts: torch.Tensor  # [step_rows] query tokens
    firsts: torch.Tensor  # [step_rows] index of the first query token
    offsets: torch.Tensor  # [num_query] of each query token in its row
    positions: torch.Tensor  # [num_query]


def fill_window(
    plan: QueryWindows,  # written
    step: StepSpans,
    *,
    length: int,  # of a ring buffer
    table_rows: int,
) -> None:
    """Write the row of each query token, and where its window is read and the token is saved."""
    if plan.owners.is_cuda:
        from outrider.ops.sparse.ring_plan_triton import fill_window_triton

        fill_window_triton(plan, step, length=length, table_rows=table_rows)
    else:
        fill_window_reference(plan, step, length=length, table_rows=table_rows)


def fill_window_reference(
    plan: QueryWindows, step: StepSpans, *, length: int, table_rows: int
) -> QueryRows:
    """The same in torch; also returns the rows, which further parts of a plan are made of."""
    rows, owners = fill_owners(plan, step), plan.owners
    fill_sources(plan.ring, rows, owners, rows.positions, length=length, table_rows=table_rows)
    fill_writes(plan.ring, rows, owners, length=length)
    return rows


def fill_owners(plan: QueryWindows, step: StepSpans) -> QueryRows:
    """The row of each query token. A node's position is that of its place in the chain."""
    decode, chunk, device = step.decode, step.chunk, plan.owners.device
    torch.arange(plan.owners.shape[0], device=device, out=plan.query_index)
    node = torch.arange(step.num_decode_query, device=device)
    torch.cat([node // step.nodes, chunk.owners + step.num_rows], out=plan.owners)
    offsets = torch.cat([node % step.nodes, chunk_offsets(chunk)])
    starts = torch.cat([decode.lengths + step.first_node, chunk.starts])
    first_chunk = step.num_decode_query + chunk.counts.cumsum(0) - chunk.counts
    return QueryRows(
        rows=torch.cat([decode.rows, chunk.rows]),
        starts=starts,
        counts=torch.cat([torch.full_like(decode.lengths, step.nodes), chunk.counts]),
        firsts=torch.cat([node[:: step.nodes], first_chunk]),
        offsets=offsets,
        positions=starts[plan.owners] + offsets,
    )


def fill_sources(
    plan: RingPlan,
    rows: QueryRows,
    owners: torch.Tensor,  # [windows] row of the step
    lasts: torch.Tensor,  # [windows] position of each window's last token
    *,
    length: int,
    table_rows: int,
) -> None:
    """Write where the tokens of every window are read."""
    window = plan.sources.shape[1]
    back = torch.arange(window - 1, -1, -1, device=lasts.device)
    position = lasts[:, None] - back  # [windows, window]
    slot = (rows.rows[owners] * length)[:, None] + position % length
    offset = position - rows.starts[owners][:, None]
    fresh = offset + (rows.firsts[owners] + table_rows * length)[:, None]
    known = torch.where(offset >= 0, fresh, slot)
    plan.sources.copy_(torch.where(position >= 0, known, ABSENT))


def fill_writes(plan: RingPlan, rows: QueryRows, owners: torch.Tensor, *, length: int) -> None:
    """A row's last tokens go to its ring buffer, as many as it holds; the others to row 0's."""
    is_saved = rows.offsets >= rows.counts[owners] - length
    torch.add(rows.rows[owners] * is_saved * length, rows.positions % length, out=plan.writes)
