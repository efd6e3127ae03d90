"""Attention on a CPU by a compiled loop over the pages, for keys and values in float32."""

import torch
from torch.autograd import profiler

from outrider.kv.reference_attention import ReferenceAttention, ReferencePlan
from outrider.ops.attention.attend_in_place import QueryGroup, attend_in_place
from outrider.ops.attention.attention_rule import AttentionRule
from outrider.ops.tree.place_nodes import node_of_query
from outrider.step.plan import AttentionPlan


class CompiledAttention(ReferenceAttention):
    """Plans a step as the reference does, and reads latents like it."""

    def run(
        self,
        query: torch.Tensor,  # [num_query, heads, head_dim]
        layer: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim]
        plan: AttentionPlan,
        rule: AttentionRule,
    ) -> torch.Tensor:  # [num_query, heads, head_dim]
        groups = query_groups(plan)
        if profiler._is_profiler_enabled:  # it sees operations of torch; a name costs 6 us
            with profiler.record_function("compiled attention"):
                return attend_in_place(query, groups, layer=layer, rule=rule)
        return attend_in_place(query, groups, layer=layer, rule=rule)


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
