"""A layer whose past is a state per row: convolution, gated delta rule, gated norm."""

import torch
import torch.nn.functional as F

from outrider.kv.ring_plan import RingTokens
from outrider.models.layers.attention_layer import AttentionStep, pad_rows
from outrider.models.recurrent.recurrent_cache import StateStore
from outrider.models.recurrent.recurrent_plan import RecurrentPlan
from outrider.ops.linear.linear import Linear
from outrider.ops.norm_rope.rms_norm import Norm
from outrider.ops.recurrent.delta_rule import DeltaRule, causal_conv, gated_delta_rule


class GatedNorm:
    """Normalises what heads have read, and lets a gate say how much of it counts."""

    def __init__(self, norm: Norm) -> None:  # weight [value_dim]
        self._norm = norm

    def __call__(
        self,
        read: torch.Tensor,  # [num_query, value_heads, value_dim]
        gate: torch.Tensor,  # [num_query, value_heads * value_dim]
    ) -> torch.Tensor:  # [num_query, value_heads * value_dim]
        if read.is_cuda:
            from outrider.ops.recurrent.delta_rule_triton import (
                gated_norm,  # a CPU installation has no Triton
            )

            return gated_norm(read, gate, self._norm.weight, self._norm.eps)
        normed = self._norm(read).flatten(1)
        return (normed * F.silu(gate.float())).to(read.dtype)


class GatedDelta:
    """Owns the maps around the rule. The first gives mixed lanes, output gate, rates, paces."""

    def __init__(
        self, rule: DeltaRule, *, channels: Linear, gated_norm: GatedNorm, output: Linear
    ) -> None:
        self._law = rule
        self._channels = channels
        self._gated_norm = gated_norm
        self._output = output
        sizes = rule.sizes
        self._widths = [sizes.qkv, sizes.values, 2 * sizes.value_heads]

    def __call__(
        self,
        x: torch.Tensor,  # [n, hidden] normalised; n is num_query or more
        residual: torch.Tensor,  # [n, hidden]
        layer: StateStore,
        step: AttentionStep,
    ) -> torch.Tensor:  # [n, hidden]
        channels = self._channels(x)[: step.slots.shape[0]]
        fresh, gate, gates = torch.split(channels, self._widths, dim=1)
        tokens = RingTokens(layer.window, fresh)
        plan = step.plan
        assert isinstance(plan, RecurrentPlan)
        qkv = causal_conv(tokens, plan.window, self._law.conv_weight)
        read = gated_delta_rule(qkv, gates, layer, plan, self._law)
        tokens.save(plan.window)
        out = self._gated_norm(read, gate)
        return self._output.plus(pad_rows(out, x.shape[0]), residual)
