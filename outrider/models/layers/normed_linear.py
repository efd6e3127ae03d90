"""A norm fused with the layer behind it, at load, where one kernel computes both.

For few rows of a small model, the time of a step is its number of kernels. A decoder layer does not
see the fusion: its norm is replaced by `NormLater`, which returns its input.
"""

import math

import torch

from outrider.models.layers.attention_layer import AttentionStep, Projection, SplitProjection
from outrider.models.layers.gated_activation import Gate, SplitGate, StreamedGate
from outrider.ops.linear.linear import BiasedLinear, FixedLinear, Linear, StreamedLinear
from outrider.ops.linear.linear_limits import MOST_SMALL_ROWS, fits_small
from outrider.ops.linear.normed_tiles import TileGate, TileHeads, can_gate, product_of
from outrider.ops.linear.small_linear import NormedQkv, NormedSwiglu
from outrider.ops.norm_rope.layer_norm import LayerNorm
from outrider.ops.norm_rope.rms_norm import Norm, NormLater


class NormedGate:
    """Norm, projection and gate: one kernel for few rows, one after another for many."""

    def __init__(self, norm: Norm, gate: StreamedGate, weight: torch.Tensor) -> None:
        self._norm = norm
        self._gate = gate
        self._fused = NormedSwiglu(norm, weight)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:  # [n, in] -> [n, intermediate]
        if x.shape[0] > MOST_SMALL_ROWS:
            return self._gate(self._norm(x))
        return self._fused(x)


class NormedProjection:
    """Norm, projection, rotation and the KV write: one kernel for few rows."""

    def __init__(self, norm: Norm, apart: Projection, fused: NormedQkv) -> None:
        self._norm = norm
        self._apart = apart
        self._fused = fused

    def __call__(
        self, x: torch.Tensor, layer: torch.Tensor, step: AttentionStep
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if x.shape[0] > MOST_SMALL_ROWS:
            return self._apart(self._norm(x), layer, step)
        queries = self._fused(x[: step.slots.shape[0]], step.rotation, layer, step.slots)
        return queries, queries[:, :0]


class TileProjection:
    """The same on a CPU, for any number of rows."""

    def __init__(self, heads: TileHeads) -> None:
        self.heads = heads

    def __call__(
        self, x: torch.Tensor, layer: torch.Tensor, step: AttentionStep
    ) -> tuple[torch.Tensor, torch.Tensor]:
        queries = self.heads(x[: step.slots.shape[0]], step.rotation, layer, step.slots)
        return queries, queries[:, :0]


def gate_behind(norm: Norm, gate: Gate) -> tuple[Norm, Gate]:
    """The norm that remains before the gate, and the gate."""
    if isinstance(norm, LayerNorm):
        return norm, gate
    if isinstance(gate, StreamedGate):
        weight = gate.gate_up.weight
        if isinstance(weight, torch.Tensor) and _fits(weight, norm):
            return NormLater(norm.weight), NormedGate(norm, gate, weight)
    if isinstance(gate, SplitGate) and gate.limit == math.inf:
        gate_up = product_of(gate.gate_up)
        if gate_up is not None and can_gate(gate_up):
            return NormLater(norm.weight), TileGate(norm, gate_up)
    return norm, gate


def project_behind(
    norm: Norm, apart: SplitProjection, *, num_ranks: int = 1
) -> tuple[Norm, Projection]:
    """The norm that remains before the projection, and the projection.

    The fused kernels have no norms of heads, which need whole heads, and no gates. That of a GPU
    marks values that are not finite in the residual. Only rank 0 adds the residual, so the marks of
    other ranks would be lost.
    """
    if isinstance(norm, LayerNorm):
        return norm, apart
    in_tiles = project_tiles(norm, apart)
    if in_tiles is not apart:
        return NormLater(norm.weight), in_tiles
    if num_ranks > 1:
        return norm, apart
    weight, bias = _weight_and_bias(apart.qkv)
    if not _is_usual(apart) or not len(weight) or not _fits(weight, norm):
        return norm, apart
    fused = NormedQkv(norm, weight=weight, bias=bias)
    return NormLater(norm.weight), NormedProjection(norm, apart, fused)


def project_tiles(norm: Norm, apart: SplitProjection) -> Projection:
    """Norm and projection as one compiled function of a CPU, where the weight is in tiles.

    The projection alone otherwise: the norm is then still to do.
    """
    qkv = product_of(apart.qkv)
    if _is_usual(apart) and qkv is not None:
        return TileProjection(TileHeads(norm, qkv))
    return apart


def _is_usual(apart: SplitProjection) -> bool:
    return not len(apart.head_norm.weight) and not apart.has_gates


def _weight_and_bias(linear: Linear) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of a linear layer that our kernels compute; both are empty for others."""
    if isinstance(linear, BiasedLinear):
        weight, _ = _weight_and_bias(linear.linear)
        return weight, linear.bias
    if isinstance(linear, StreamedLinear | FixedLinear):
        return linear.weight, linear.weight.new_empty(0)
    return torch.empty(0, 0), torch.empty(0)


def _fits(weight: torch.Tensor, norm: Norm) -> bool:
    return fits_small(weight, is_normed=len(norm.weight) > 0)
