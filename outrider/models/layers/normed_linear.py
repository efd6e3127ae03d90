"""A norm and the part of a block behind it, made one at load where a kernel can do both.

For few rows of a small model a step is as long as its number of kernels. Whoever calls a block does
not see it: the norm that is left before the part leaves rows as they are.
"""

import torch

from outrider.models.layers.attention_layer import AttentionStep, Projection, SplitProjection
from outrider.models.layers.gated_activation import Gate, StreamedGate
from outrider.models.layers.linear import BiasedLinear, FixedLinear, Linear, StreamedLinear
from outrider.models.layers.rms_norm import Norm, NormLater


class NormedGate:
    """Norm, map and gate in one kernel for few rows, one after the other for many."""

    def __init__(self, norm: Norm, gate: StreamedGate) -> None:
        from outrider.ops.linear import small_linear_triton as small

        self._norm = norm
        self._gate = gate
        self._weight = gate.gate_up.weight
        self._small = small

    def __call__(self, x: torch.Tensor) -> torch.Tensor:  # [n, in] -> [n, intermediate]
        if x.shape[0] > self._small.MOST_ROWS:
            return self._gate(self._norm(x))
        return self._small.normed_swiglu(x, (self._norm.weight, self._norm.eps), self._weight)


class NormedProjection:
    """Norm, map, rotation and the KV write in one kernel for few rows."""

    def __init__(
        self,
        norm: Norm,
        apart: Projection,
        *,
        weight: torch.Tensor,  # [(heads + 2 * kv_heads) * head_dim, in]
        bias: torch.Tensor,  # [(heads + 2 * kv_heads) * head_dim], or [0]
    ) -> None:
        from outrider.ops.linear.qkv_projection_triton import project_heads
        from outrider.ops.linear.small_linear_triton import MOST_ROWS

        self._norm = norm
        self._apart = apart
        self._weight = weight
        self._bias = bias
        self._most_rows = MOST_ROWS
        self._together = project_heads

    def __call__(
        self, x: torch.Tensor, layer: torch.Tensor, step: AttentionStep
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if x.shape[0] > self._most_rows:
            return self._apart(self._norm(x), layer, step)
        norm, rotation = self._norm, step.rotation
        queries = self._together(
            x[: step.slots.shape[0]],
            (norm.weight, norm.eps),
            self._weight,
            self._bias,
            (rotation.cos, rotation.sin),
            layer,
            step.slots,
        )
        return queries, queries[:, :0]


def gate_behind(norm: Norm, gate: Gate) -> tuple[Norm, Gate]:
    """What is left of the norm, and the gate behind it."""
    if isinstance(gate, StreamedGate) and _fits(gate.gate_up.weight, norm):
        return NormLater(norm.weight), NormedGate(norm, gate)
    return norm, gate


def project_behind(norm: Norm, apart: SplitProjection) -> tuple[Norm, Projection]:
    """What is left of the norm, and the projection behind it.

    Norms of heads need whole heads, and gates are no heads.
    """
    weight, bias = _weight_and_bias(apart.qkv)
    is_usual = not len(apart.head_norm.weight) and not apart.has_gates
    if not is_usual or not len(weight) or not _fits(weight, norm):
        return norm, apart
    return NormLater(norm.weight), NormedProjection(norm, apart, weight=weight, bias=bias)


def _weight_and_bias(linear: Linear) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a map that our own kernels compute; both are empty for other maps."""
    if isinstance(linear, BiasedLinear):
        weight, _ = _weight_and_bias(linear.linear)
        return weight, linear.bias
    if isinstance(linear, StreamedLinear | FixedLinear):
        return linear.weight, linear.weight.new_empty(0)
    return torch.empty(0, 0), torch.empty(0)


def _fits(weight: torch.Tensor, norm: Norm) -> bool:
    from outrider.ops.linear.small_linear_triton import fits  # who has such a weight has Triton

    return fits(weight, is_normed=len(norm.weight) > 0)
