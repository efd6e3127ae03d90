"""Attention for models with recurrent layers: the usual backend for the layers that attend, and the
plan of the recurrent states (docs/decisions/0011).

A state contains committed tokens only. The nodes of a step change no stored state; their inputs are
saved, and the next step applies the accepted ones. How many those are follows from row lengths.
"""

from dataclasses import dataclass, replace

import torch

from outrider.kv.spans_of import spans_of
from outrider.ops.attention.attention_rule import AttentionRule
from outrider.ops.recurrent.fill_recurrent import fill_recurrent
from outrider.ops.recurrent.recurrent_rows import RecurrentRows, StateRows
from outrider.ops.sparse.ring_plan import QueryWindows
from outrider.ops.sparse.ring_tokens import RingPlan
from outrider.step.arena import Arena
from outrider.step.attention_backend import AttentionBackend, AttentionScope, Capabilities
from outrider.step.plan import AttentionPlan
from outrider.step.shape import StepShape

_STATE_ROWS = ("rows", "accepted_counts", "firsts", "counts")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentPlan(AttentionPlan):
    """The part of recurrent models in a plan, shared by all layers."""

    shape: StepShape
    rows: RecurrentRows
    paged: AttentionPlan  # the backend's part, for layers that attend


class RecurrentAttention:
    """Plans recurrent states, and attention by a backend. The nodes of a row are a chain: no trees.

    `state_lengths` says for every row of the tables how many tokens its states contain.
    """

    def __init__(
        self,
        backend: AttentionBackend,
        state_lengths: torch.Tensor,  # [table_rows] int64
        *,
        window: int,  # tokens that the convolution reads
        ring_length: int,  # slots of a row
        nodes: int,  # of the longest chain
    ) -> None:
        self._backend = backend
        self._state_lengths = state_lengths
        self._window = window
        self._ring_length = ring_length
        self._nodes = nodes

    @property
    def capabilities(self) -> Capabilities:
        can = self._backend.capabilities
        nodes = min(can.max_nodes, self._nodes)
        return replace(can, chain_only=True, is_ragged=False, max_nodes=nodes)

    def reserve(self, arena: Arena, largest: StepShape) -> None:
        query, rows = largest.num_query, largest.rows + largest.chunk.rows
        for name in ("query_index", "owners", "writes"):
            arena.reserve(f"recurrent.{name}", query, torch.int64)
        arena.reserve("recurrent.sources", query * self._window, torch.int64)
        for name in _STATE_ROWS:
            arena.reserve(f"recurrent.{name}", rows, torch.int64)
        self._backend.reserve(arena, largest)

    def bind(self, arena: Arena, shape: StepShape) -> RecurrentPlan:
        num_rows, query = shape.rows + shape.chunk.rows, shape.num_query
        states = {name: arena.view(f"recurrent.{name}", num_rows) for name in _STATE_ROWS}
        window = QueryWindows(
            query_index=arena.view("recurrent.query_index", query),
            owners=arena.view("recurrent.owners", query),
            ring=RingPlan(
                sources=arena.view("recurrent.sources", query, self._window),
                writes=arena.view("recurrent.writes", query),
            ),
        )
        rows = RecurrentRows(
            states=StateRows(**states),
            window=window,
            num_rows=shape.rows,
            nodes=shape.nodes,
            chunk_width=shape.chunk.width,
        )
        return RecurrentPlan(shape=shape, rows=rows, paged=self._backend.bind(arena, shape))

    def fill(self, plan: AttentionPlan, scope: AttentionScope) -> None:
        """Write the plan, and how many tokens the states of its rows will contain after it."""
        assert isinstance(plan, RecurrentPlan)
        assert not scope.first_node, "a draft step has no recurrent states"
        self._backend.fill(plan.paged, scope)
        fill_recurrent(
            plan.rows,
            self._state_lengths,
            spans_of(plan.shape, scope),
            length=self._ring_length,
            most_nodes=self._nodes,
        )

    def write_slots(
        self,
        plan: AttentionPlan,
        slots: torch.Tensor,  # [num_query]
    ) -> torch.Tensor:  # [num_query]
        assert isinstance(plan, RecurrentPlan)
        return self._backend.write_slots(plan.paged, slots)

    def run(
        self,
        query: torch.Tensor,  # [num_query, heads, head_dim]
        layer: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim]
        plan: AttentionPlan,
        rule: AttentionRule,
    ) -> torch.Tensor:  # [num_query, heads, head_dim]
        assert isinstance(plan, RecurrentPlan)
        return self._backend.run(query, layer, plan.paged, rule)

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
