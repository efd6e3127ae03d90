"""Attention on a CPU by a compiled loop over the pages, for keys and values in float32."""

from functools import partial

import torch
from torch.autograd import profiler

from outrider.kv.reference_attention import ReferenceAttention, ReferencePlan
from outrider.ops.attention.attend_in_place import attend_in_place
from outrider.ops.attention.attention_rule import AttentionRule
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
        assert isinstance(plan, ReferencePlan)
        attend = partial(attend_in_place, layer=layer, rule=rule)
        if profiler._is_profiler_enabled:  # it sees operations of torch; a name costs 6 us
            with profiler.record_function("compiled attention"):
                return self._run(query, plan, attend)
        return self._run(query, plan, attend)
