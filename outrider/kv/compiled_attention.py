"""Attention on a CPU by a compiled loop over the pages, for keys and values in float32."""

import torch

from outrider.kv.reference_attention import ReferenceAttention, ReferencePlan
from outrider.ops.attention.attend_in_place import QueryGroup, attend_in_place
from outrider.ops.attention.attention_rule import AttentionRule
from outrider.ops.attention.fill_seen_keys import fill_seen_keys
from outrider.ops.attention.ordered_attention import SLOT_ORDER, KeyOrder, SeenKeys
from outrider.ops.tree.place_nodes import node_of_query
from outrider.step.arena import Arena
from outrider.step.attention_backend import AttentionScope
from outrider.step.plan import AttentionPlan
from outrider.step.shape import StepShape


class CompiledAttention(ReferenceAttention):
    """Plans a step as the reference does, and reads latents like it."""

    def __init__(self, *, page_size: int, dtype: torch.dtype, has_latents: bool = True) -> None:
        super().__init__(page_size=page_size, dtype=dtype)
        self._has_latents = has_latents

    def _bind_order(self, arena: Arena, shape: StepShape) -> KeyOrder:
        # Compiled loops read visible keys in the order of slots; on a path, that of positions.
        return super()._bind_order(arena, shape) if self._has_latents else SLOT_ORDER

    def _fill_seen(self, group: SeenKeys, scope: AttentionScope) -> None:
        fill_seen_keys(group, scope.decode, scope.ancestors, scope.page_table, self._page_size)

    def run(
        self,
        query: torch.Tensor,  # [num_query, heads, head_dim]
        layer: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim]
        plan: AttentionPlan,
        rule: AttentionRule,
    ) -> torch.Tensor:  # [num_query, heads, head_dim]
        groups = query_groups(plan)
        return attend_in_place(query, groups, layer=layer, rule=rule)

    def run_latent(
        self,
        query: torch.Tensor,  # [num_query, heads, width]
        layer: torch.Tensor,  # [pages, page_size, 1, width]
        plan: AttentionPlan,
        scale: float,
        latent: int,
    ) -> torch.Tensor:  # [num_query, heads, latent]
        assert self._has_latents, "without its users' latents the order of keys was not planned"
        return super().run_latent(query, layer, plan, scale, latent)


def query_groups(plan: AttentionPlan) -> tuple[QueryGroup, ...]:
    """The query tokens of decode rows, and those of chunks, if there are any."""
    assert isinstance(plan, ReferencePlan)
    shape, num_decode_query = plan.shape, plan.shape.num_decode_query
    groups = []
    if num_decode_query:
        places = plan.places[:0]
        if shape.ragged:
            places = node_of_query(plan.queries, shape.ragged)
        groups.append(QueryGroup(first=0, num=num_decode_query, places=places, seen=plan.decode))
    if shape.chunk.rows:
        num, places = shape.chunk.tokens, plan.places
        groups.append(QueryGroup(first=num_decode_query, num=num, places=places, seen=plan.chunk))
    return tuple(groups)
