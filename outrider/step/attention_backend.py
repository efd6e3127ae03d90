"""What an attention backend offers: it reserves memory, binds and fills its plan, and runs."""

from dataclasses import dataclass
from typing import Protocol

import torch

from outrider.ops.attention.attention_rule import AttentionRule
from outrider.ops.tree.plan_rows import ChunkRows, DecodeRows
from outrider.step.arena import Arena
from outrider.step.plan import AttentionPlan
from outrider.step.shape import StepShape


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionScope:
    """Which keys a query token may read: [0, length) of its row, then tokens of this step."""

    decode: DecodeRows
    ancestors: torch.Tensor  # [rows, nodes] int64 bitmask over the nodes of the row's tree
    queries: torch.Tensor  # [rows, nodes] int64 query token of each node, -1 if it does not run
    chunk: ChunkRows
    page_table: torch.Tensor  # [table_rows, max_pages] int64
    window_table: torch.Tensor  # the same for layers with pages of their own; or [table_rows, 0]
    first_node: int = 0  # index of the first node: earlier draft levels stored those before it


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend can do. Every field is required, so that nothing is assumed."""

    max_nodes: int
    chain_only: bool  # every node has a position of its own: no trees
    is_ragged: bool  # decode rows of a step may have different numbers of query tokens
    page_sizes: range
    max_head_dim: int
    max_group: int  # query heads that share a key
    max_latent: int  # channels of a latent
    needs_host_lengths: bool


class AttentionPlanner(Protocol):
    """Plans what attention needs to know of a step, once for all layers."""

    @property
    def capabilities(self) -> Capabilities: ...

    def reserve(self, arena: Arena, largest: StepShape) -> None:
        """Reserve arena memory for any shape up to the largest."""
        ...

    def bind(self, arena: Arena, shape: StepShape) -> AttentionPlan:
        """The backend's part of a plan: views of the arena, for this shape, at fixed addresses."""
        ...

    def fill(self, plan: AttentionPlan, scope: AttentionScope) -> None:
        """Write every element of that part, by device operations alone."""
        ...


class AttentionBackend(AttentionPlanner, Protocol):
    """One backend for every kind of row: decode rows under a bitmask, chunks causally."""

    def write_slots(
        self,
        plan: AttentionPlan,
        slots: torch.Tensor,  # [num_query] of the step's plan; on page 0 for padding
    ) -> torch.Tensor:  # [num_query]
        """Where a layer writes the KV of every query token before it calls `run`.

        Backends that plan all of a step when it is filled return the slots of the plan.
        """
        ...

    def run(
        self,
        query: torch.Tensor,  # [num_query, heads, head_dim]
        layer: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim], this step's KV written
        plan: AttentionPlan,
        rule: AttentionRule,
    ) -> torch.Tensor:  # [num_query, heads, head_dim]
        """Attention of every query token over its row's history and its own ancestors.

        With a sliding window, over the newest of them.
        """
        ...

    def run_latent(
        self,
        query: torch.Tensor,  # [num_query, heads, width]
        layer: torch.Tensor,  # [pages, page_size, 1, width], this step's latents written
        plan: AttentionPlan,
        scale: float,
        latent: int,
    ) -> torch.Tensor:  # [num_query, heads, latent]
        """The same for MLA: heads share one key, whose first `latent` channels are the value."""
        ...
