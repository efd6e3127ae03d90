"""A recurrent layer: convolution, gated delta rule, gated norm."""

import torch

from outrider.models.layers.attention_layer import AttentionStep, pad_rows
from outrider.models.recurrent.recurrent_plan import RecurrentPlan
from outrider.ops.linear.linear import Linear
from outrider.ops.norm_rope.rms_norm import Norm
from outrider.ops.recurrent.causal_conv import causal_conv
from outrider.ops.recurrent.delta_rule import DeltaRule, gated_delta_rule
from outrider.ops.recurrent.gated_norm import gated_norm
from outrider.ops.recurrent.recurrent_rows import RecurrentState
from outrider.ops.sparse.ring_tokens import RingTokens


class GatedDelta:
    """Owns the projections around the rule. The first gives qkv, output gate, betas, decays."""

    def __init__(self, rule: DeltaRule, *, channels: Linear, norm: Norm, output: Linear) -> None:
        self._rule = rule
        self._channels = channels
        self._norm = norm
        self._output = output
        sizes = rule.sizes
        self._widths = [sizes.qkv, sizes.values, 2 * sizes.value_heads]

    def __call__(
        self,
        x: torch.Tensor,  # [n, hidden] normalised; n is num_query or more
        residual: torch.Tensor,  # [n, hidden]
        layer: RecurrentState,
        step: AttentionStep,
    ) -> torch.Tensor:  # [n, hidden]
        read, gate = self._run_rule(x, layer, step)
        out = gated_norm(read, gate, self._norm)
        return self._output.plus(pad_rows(out, x.shape[0]), residual)

    def write_kv(self, x: torch.Tensor, layer: RecurrentState, step: AttentionStep) -> None:
        self._run_rule(x, layer, step)

    def _run_rule(
        self, x: torch.Tensor, layer: RecurrentState, step: AttentionStep
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What the query tokens read of the states, and its gates. Writes the row state."""
        plan = step.plan
        assert isinstance(plan, RecurrentPlan)
        channels = self._channels(x)[: step.slots.shape[0]]
        fresh, gate, gates = torch.split(channels, self._widths, dim=1)
        tokens, ring = RingTokens(layer.window, fresh), plan.rows.window.ring
        qkv = causal_conv(tokens, ring.sources, self._rule.conv_weight)
        read = gated_delta_rule(qkv, gates, layer, plan.rows, self._rule)
        tokens.save(ring)
        return read, gate
