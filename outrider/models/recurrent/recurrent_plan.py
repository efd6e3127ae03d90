"""Attention for models of which some layers keep a state per row: the usual backend for the others,
and the plan of what becomes of the states (docs/decisions/0011).

A state contains tokens that are committed and nothing else. What a step drafts is left pending, and
the next step takes those in that were kept: their number follows from how far the row has come.
"""

from dataclasses import dataclass, replace

import torch

from outrider.kv.ring_plan import (
    RingPlan,
    StepRows,
    fill_owners,
    fill_sources,
    fill_writes,
    rows_on_gpu,
)
from outrider.models.recurrent.recurrent_cache import RecurrentLayout
from outrider.step.arena import Arena
from outrider.step.attention_backend import AttentionBackend, AttentionScope, Capabilities
from outrider.step.plan import AttentionPlan
from outrider.step.shape import StepShape

NEW_TEXT = -1  # in place of a number of tokens to take in: the text begins here, the state is zero

_SPANS = ("rows", "accepted_counts", "firsts", "counts")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRows:
    """What happens to the states of the rows of a step: uniform ones first, then chunks."""

    rows: torch.Tensor  # [step_rows] int64 in the device tables
    accepted_counts: torch.Tensor  # [step_rows] int64 pending tokens that were kept, or NEW_TEXT
    firsts: torch.Tensor  # [step_rows] int64 the first of its query tokens among all
    counts: torch.Tensor  # [step_rows] int64 its query tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentPlan(AttentionPlan):
    """What all layers of a step share."""

    shape: StepShape
    query_index: torch.Tensor  # [num_query] int64 the query tokens themselves, counted
    owners: torch.Tensor  # [num_query] int64 row of the step each query token belongs to
    window: RingPlan  # a window per query token
    states: StateRows
    paged: AttentionPlan  # the backend's part


class RecurrentAttention:
    """Plans states beside what a backend plans. Nodes of a row are a chain: a state has one past.

    `stands` says for every row of the tables how many tokens its states contain.
    """

    def __init__(
        self,
        backend: AttentionBackend,
        layout: RecurrentLayout,
        state_lengths: torch.Tensor,  # [table_rows] int64
    ) -> None:
        self._backend = backend
        self._layout = layout
        self._state_lengths = state_lengths

    @property
    def capabilities(self) -> Capabilities:
        can = self._backend.capabilities
        return replace(can, chain_only=True, max_nodes=min(can.max_nodes, self._layout.nodes))

    def reserve(self, arena: Arena, largest: StepShape) -> None:
        query, rows = largest.num_query, largest.rows + largest.chunk.rows
        window = self._layout.recurrence.window
        for name in ("query_index", "owners", "writes"):
            arena.reserve(f"recurrent.{name}", query, torch.int64)
        arena.reserve("recurrent.sources", query * window, torch.int64)
        for name in _SPANS:
            arena.reserve(f"recurrent.{name}", rows, torch.int64)
        self._backend.reserve(arena, largest)

    def bind(self, arena: Arena, shape: StepShape) -> RecurrentPlan:
        rows, query = shape.rows + shape.chunk.rows, shape.num_query
        window = self._layout.recurrence.window
        return RecurrentPlan(
            shape=shape,
            query_index=arena.view("recurrent.query_index", query),
            owners=arena.view("recurrent.owners", query),
            window=RingPlan(
                sources=arena.view("recurrent.sources", query, window),
                writes=arena.view("recurrent.writes", query),
            ),
            states=StateRows(**{name: arena.view(f"recurrent.{name}", rows) for name in _SPANS}),
            paged=self._backend.bind(arena, shape),
        )

    def fill(self, plan: AttentionPlan, scope: AttentionScope) -> None:
        """Write the plan, and how far the states of its rows will stand when it has run."""
        assert isinstance(plan, RecurrentPlan)
        assert not scope.first_node, "a draft step has no states to take back"
        self._backend.fill(plan.paged, scope)
        if plan.owners.is_cuda:
            self.fill_on_gpu(plan, scope)
            return
        step = fill_owners(plan.shape, scope, query_index=plan.query_index, owners=plan.owners)
        length, table_rows = self._layout.ring, self._state_lengths.shape[0]
        part, owners = plan.window, plan.owners
        fill_sources(part, step, owners, step.positions, length=length, table_rows=table_rows)
        fill_writes(part, step, owners, length=length)
        self._fill_states(plan, step)

    def fill_on_gpu(self, plan: RecurrentPlan, scope: AttentionScope) -> None:
        """The same in two launches."""
        from outrider.ops.sparse import (
            ring_plan_triton as rings,  # a CPU installation has no Triton
        )

        step, states = rows_on_gpu(plan.shape, scope), plan.states
        rings.fill_window(
            step,
            query_index=plan.query_index,
            owners=plan.owners,
            sources=plan.window.sources,
            writes=plan.window.writes,
            length=self._layout.ring,
            table_rows=self._state_lengths.shape[0],
        )
        parts = (states.rows, states.accepted_counts, states.firsts, states.counts)
        rings.fill_spans(step, parts, self._state_lengths, most=self._layout.nodes)

    def run(
        self,
        query: torch.Tensor,  # [num_query, heads, head_dim]
        layer: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim]
        plan: AttentionPlan,
        scale: float,
    ) -> torch.Tensor:  # [num_query, heads, head_dim]
        assert isinstance(plan, RecurrentPlan)
        return self._backend.run(query, layer, plan.paged, scale)

    def run_latent(
        self,
        query: torch.Tensor,  # [num_query, heads, width]
        layer: torch.Tensor,  # [pages, page_size, 1, width]
        plan: AttentionPlan,
        scale: float,
        latent: int,
    ) -> torch.Tensor:  # [num_query, heads, latent]
        assert isinstance(plan, RecurrentPlan)
        return self._backend.run_latent(query, layer, plan.paged, scale, latent)

    def _fill_states(self, plan: RecurrentPlan, step: StepRows) -> None:
        states, state_lengths = plan.states, self._state_lengths
        states.rows.copy_(step.rows)
        states.firsts.copy_(step.firsts)
        states.counts.copy_(step.counts)
        kept = (step.starts - state_lengths[step.rows]).clamp(0, self._layout.nodes)
        states.accepted_counts.copy_(torch.where(step.starts > 0, kept, NEW_TEXT))
        # Nodes may be taken back, so states stand before them; chunks are committed as they run.
        is_chunk = torch.arange(step.rows.shape[0], device=state_lengths.device) >= plan.shape.rows
        after = (step.starts + step.counts * is_chunk) * (step.rows > 0)
        state_lengths.index_copy_(0, step.rows, after)
