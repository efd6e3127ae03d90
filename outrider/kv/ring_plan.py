"""Rings of rows in a plan: where windows of the last tokens are read, and where new ones are kept.

A row's step brings tokens [start, start + count). What is older lies in its ring, by position; what
the step brings is read from the step itself, and goes to the ring after all reading.
"""

from dataclasses import dataclass
from typing import Any

import torch

from outrider.ops.tree.plan_rows import chunk_offsets
from outrider.step.attention_backend import AttentionScope
from outrider.step.shape import StepShape

ABSENT = -1  # a source before the beginning of the text


@dataclass(frozen=True, slots=True, kw_only=True)
class RingPlan:
    """One ring. A source is a slot of it, or past its last slot a query token of this step."""

    sources: torch.Tensor  # [windows, window] int64 tokens of each window in order, or ABSENT
    writes: torch.Tensor  # [num_query] int64 slot where each query token is kept; row 0: nowhere


@dataclass(frozen=True, slots=True)
class RingTokens:
    """Vectors of tokens: those that a ring kept, and those that this step brings."""

    ring: torch.Tensor  # [slots, width]
    fresh: torch.Tensor  # [num_query, width]

    def read(self, sources: torch.Tensor) -> torch.Tensor:  # [n, window] -> [n, window, width]
        """The vectors of all sources; any for one that is absent."""
        num_slots, shape = self.ring.shape[0], (*sources.shape, self.ring.shape[1])
        kept = self.ring.index_select(0, sources.clamp(0, num_slots - 1).flatten()).view(shape)
        fresh = self.fresh.index_select(0, (sources - num_slots).clamp_min(0).flatten()).view(shape)
        return torch.where((sources >= num_slots)[..., None], fresh, kept)

    def save(self, part: RingPlan) -> None:
        """Write what the step brought to the ring. Nobody may read the step's windows after it."""
        self.ring.index_copy_(0, part.writes, self.fresh)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """The rows of a step, uniform ones and chunks alike; the last two are of query tokens."""

    rows: torch.Tensor  # [step_rows] in the device tables
    starts: torch.Tensor  # [step_rows] cached tokens
    counts: torch.Tensor  # [step_rows] query tokens
    firsts: torch.Tensor  # [step_rows] the first of them among all
    offsets: torch.Tensor  # [num_query] of each query token within its row
    positions: torch.Tensor  # [num_query]


def fill_owners(
    shape: StepShape,
    scope: AttentionScope,
    *,
    query_index: torch.Tensor,  # [num_query] written: the query tokens, counted
    owners: torch.Tensor,  # [num_query] written: the row of the step each belongs to
) -> StepRows:
    """Whose each query token is. Absent nodes have positions too: their own, not their depth's."""
    decode, chunk, device = scope.decode, scope.chunk, owners.device
    torch.arange(shape.num_query, device=device, out=query_index)
    node = torch.arange(shape.num_decode_query, device=device)
    torch.cat([node // shape.nodes, chunk.owners + shape.rows], out=owners)
    offsets = torch.cat([node % shape.nodes, chunk_offsets(chunk)])
    starts = torch.cat([decode.lengths + scope.first_node, chunk.starts])
    first_chunk = shape.num_decode_query + chunk.counts.cumsum(0) - chunk.counts
    return StepRows(
        rows=torch.cat([decode.rows, chunk.rows]),
        starts=starts,
        counts=torch.cat([torch.full_like(decode.lengths, shape.nodes), chunk.counts]),
        firsts=torch.cat([node[:: shape.nodes], first_chunk]),
        offsets=offsets,
        positions=starts[owners] + offsets,
    )


def fill_sources(
    part: RingPlan,
    step: StepRows,
    owners: torch.Tensor,  # [windows] row of the step
    lasts: torch.Tensor,  # [windows] position of each window's last token
    *,
    length: int,
    table_rows: int,
) -> None:
    """Where the tokens of every window are read."""
    window = part.sources.shape[1]
    back = torch.arange(window - 1, -1, -1, device=lasts.device)
    position = lasts[:, None] - back  # [windows, window]
    slot = (step.rows[owners] * length)[:, None] + position % length
    offset = position - step.starts[owners][:, None]
    fresh = offset + (step.firsts[owners] + table_rows * length)[:, None]
    known = torch.where(offset >= 0, fresh, slot)
    part.sources.copy_(torch.where(position >= 0, known, ABSENT))


def fill_writes(part: RingPlan, step: StepRows, owners: torch.Tensor, *, length: int) -> None:
    """A row's last tokens go to its ring, as many as it holds; the others to row 0's."""
    is_kept = step.offsets >= step.counts[owners] - length
    torch.add(step.rows[owners] * is_kept * length, step.positions % length, out=part.writes)


def rows_on_gpu(shape: StepShape, scope: AttentionScope) -> Any:
    """The rows of a step as the kernels want them."""
    from outrider.ops.sparse import ring_plan_triton as rings  # a CPU installation has no Triton

    decode, chunk = scope.decode, scope.chunk
    return rings.StepRows(
        decode=(decode.rows, decode.lengths),
        chunk=(chunk.rows, chunk.starts, chunk.counts),
        owners=chunk.owners,
        nodes=shape.nodes,
        first_node=scope.first_node,
    )
