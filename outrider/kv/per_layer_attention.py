"""Attention that is planned in every layer, and not once per step.

Other backends read page tables, lengths and trees when a plan is filled, and their layers read the
plan. This one reads them again in each layer, when it runs: before the layer writes keys and
values, and before it attends. Both ways must give the same bits: if they do not, something between
the fill and the layers has changed what a plan is made of.
"""

import torch

from outrider.ops.attention.attention_rule import AttentionRule
from outrider.ops.tree.write_places import chunk_slots, node_slots
from outrider.step.arena import Arena
from outrider.step.attention_backend import AttentionBackend, AttentionScope, Capabilities
from outrider.step.plan import AttentionPlan
from outrider.step.shape import StepShape


class PerLayerPlan(AttentionPlan):
    """The plan of the backend inside, and the scope of the last fill."""

    __slots__ = ("inner", "scope")

    def __init__(self, inner: AttentionPlan) -> None:
        self.inner = inner
        # Not a copy: a capture holds the addresses, and tensors of the program must stay alive.
        self.scope: AttentionScope | None = None  # until it is filled


class PerLayerAttention:
    """Runs the kernels of another backend, and fills its plan before each of them."""

    def __init__(self, backend: AttentionBackend, *, page_size: int) -> None:
        self._backend = backend
        self._page_size = page_size

    @property
    def capabilities(self) -> Capabilities:
        return self._backend.capabilities

    def reserve(self, arena: Arena, largest: StepShape) -> None:
        self._backend.reserve(arena, largest)

    def bind(self, arena: Arena, shape: StepShape) -> PerLayerPlan:
        return PerLayerPlan(self._backend.bind(arena, shape))

    def fill(self, plan: AttentionPlan, scope: AttentionScope) -> None:
        """Only remember what to read."""
        assert isinstance(plan, PerLayerPlan)
        plan.scope = scope

    def write_slots(
        self,
        plan: AttentionPlan,
        slots: torch.Tensor,  # [num_query]
    ) -> torch.Tensor:  # [num_query]
        """From page tables and lengths. Only which query tokens are padding is read of the plan."""
        assert isinstance(plan, PerLayerPlan)
        assert plan.scope is not None, "a plan is filled before its first layer"
        scope, size = plan.scope, self._page_size
        num_decode_query = slots.shape[0] - scope.chunk.tokens.shape[0]
        of_nodes = node_slots(
            scope.decode,
            scope.queries,
            pages=scope.page_table,
            page_size=size,
            first_node=scope.first_node,
            num_query=num_decode_query,
        )
        found = torch.cat([of_nodes, chunk_slots(scope.chunk, scope.page_table, size)])
        return torch.where(slots < size, slots, found)

    def run(
        self,
        query: torch.Tensor,  # [num_query, heads, head_dim]
        layer: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim]
        plan: AttentionPlan,
        rule: AttentionRule,
    ) -> torch.Tensor:  # [num_query, heads, head_dim]
        return self._backend.run(query, layer, self._fill_now(plan), rule)

    def run_latent(
        self,
        query: torch.Tensor,  # [num_query, heads, width]
        layer: torch.Tensor,  # [pages, page_size, 1, width]
        plan: AttentionPlan,
        scale: float,
        latent: int,
    ) -> torch.Tensor:  # [num_query, heads, latent]
        return self._backend.run_latent(query, layer, self._fill_now(plan), scale, latent)

    def _fill_now(self, plan: AttentionPlan) -> AttentionPlan:
        assert isinstance(plan, PerLayerPlan)
        assert plan.scope is not None, "a plan is filled before its first layer"
        self._backend.fill(plan.inner, plan.scope)
        return plan.inner
