"""The attention part of a decoder layer: projections, rotation, the KV write and the backend."""

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from outrider.models.layers.kv_scales import NO_SCALES, KVScales
from outrider.models.model_config import AttentionConfig
from outrider.ops.attention.attention_rule import AttentionRule
from outrider.ops.attention.kv_codes import is_narrow, store_codes
from outrider.ops.fixed_activations import sigmoid
from outrider.ops.linear.linear import Linear
from outrider.ops.norm_rope.head_norm import HeadNorm
from outrider.ops.norm_rope.rotary import Rotation, rotate_and_store
from outrider.step.attention_backend import AttentionBackend
from outrider.step.plan import AttentionPlan

NO_FACTORS = torch.empty(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionStep:
    """The inputs of attention that all layers of a step share."""

    rotation: Rotation
    slots: torch.Tensor  # [num_query] where the KV of each query token is written
    backend: AttentionBackend
    plan: AttentionPlan  # the backend's part of the step's plan
    # [num_query] float32 of queries, in layers whose scores grow with the position; [0] in others
    query_factors: torch.Tensor = NO_FACTORS

    def placed(self) -> "AttentionStep":
        """The step with the slots that the backend wants: those of the plan, or its own."""
        slots = self.backend.write_slots(self.plan, self.slots)
        return self if slots is self.slots else replace(self, slots=slots)

    def grown(self, queries: torch.Tensor) -> torch.Tensor:  # [num_query, heads, head_dim] both
        """The queries times their factors."""
        if not self.query_factors.numel():
            return queries
        return (queries * self.query_factors[:, None, None]).to(queries.dtype)


class Attention(Protocol):
    """The residual plus the output of attention for every query token; writes their KV."""

    def __call__(
        self,
        x: torch.Tensor,  # [n, hidden] normalised; n is num_query or more
        residual: torch.Tensor,  # [n, hidden] may be overwritten
        layer: Any,  # [pages, page_size, vectors, width], or the row state of a recurrent layer
        step: AttentionStep,
    ) -> torch.Tensor: ...  # [n, hidden]

    def write_kv(self, x: torch.Tensor, layer: Any, step: AttentionStep) -> None:
        """Write what a call would write, for query tokens whose own output is not needed.

        To the slots of the plan: the part of the backend is not filled where nothing attends.
        """
        ...


class Projection(Protocol):
    """The rotated queries of all query tokens, and the gates of attention's output.

    Gates have no heads where the model has none. Keys and values are written to the pool.
    """

    def __call__(
        self,
        x: torch.Tensor,  # [n, hidden]; n is num_query or more
        layer: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim]
        step: AttentionStep,
    ) -> tuple[torch.Tensor, torch.Tensor]: ...  # [num_query, heads, head_dim] both


class KVWriter(Protocol):
    """Writes what a layer stores of query tokens. What it returns is not needed."""

    def __call__(
        self,
        x: torch.Tensor,  # [n, hidden]; n is num_query or more
        layer: torch.Tensor,  # [pages, page_size, vectors, width]
        step: AttentionStep,
    ) -> object: ...


class SplitProjection:
    """The fused projection, then rotation and the KV write: for any linear layer and head norm."""

    def __init__(
        self,
        config: AttentionConfig,
        *,
        qkv: Linear,
        head_norm: HeadNorm,
        has_gates: bool = False,  # the projection has gates behind the values
    ) -> None:
        self.qkv = qkv
        self.head_norm = head_norm
        self.has_gates = has_gates
        self._config = config

    def __call__(
        self, x: torch.Tensor, layer: torch.Tensor, step: AttentionStep
    ) -> tuple[torch.Tensor, torch.Tensor]:
        config, num_query = self._config, step.slots.shape[0]
        channels = self.qkv(x)[:num_query].view(num_query, -1, config.head_dim)
        num_heads = config.heads + 2 * config.kv_heads
        heads, gates = channels[:, :num_heads], channels[:, num_heads:]
        rotate_and_store(heads, step.rotation, self.head_norm, layer, step.slots)
        return heads[:, : config.heads], gates


class OutputGate(Protocol):
    """Scales the output of every head."""

    def __call__(
        self,
        read: torch.Tensor,  # [num_query, heads, head_dim] output of attention
        gates: torch.Tensor,  # [num_query, heads, head_dim]; no heads where there are none
    ) -> torch.Tensor: ...  # [num_query, heads, head_dim]


class NoGate:
    """No gate: returns its input."""

    def __call__(self, read: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        del gates
        return read


class SigmoidGate:
    """A sigmoid gate per channel."""

    def __call__(self, read: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        return sigmoid(gates).mul_(read)


class SelfAttention:
    """Owns the projection, the gate and the output projection."""

    def __init__(
        self,
        *,
        project: Projection,
        gate: OutputGate,
        output: Linear,
        rule: AttentionRule,
        kv_scales: KVScales = NO_SCALES,  # for a pool of codes
    ) -> None:
        self._kv_scales = kv_scales
        self.project = project
        self.gate = gate
        self.output = output
        self.rule = rule

    def __call__(
        self,
        x: torch.Tensor,  # [n, hidden] as the projection reads it; n is num_query or more
        residual: torch.Tensor,  # [n, hidden]
        layer: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim]
        step: AttentionStep,
    ) -> torch.Tensor:  # [n, hidden]
        step = step.placed()
        scales = self._kv_scales if is_narrow(layer) else NO_SCALES
        queries, gates = project_and_store(self.project, x, layer, step, scales)
        queries = scales.of_queries(step.grown(queries))
        read = step.backend.run(queries, layer, step.plan, self.rule)
        out = self.gate(scales.of_read(read), gates)
        return self.output.plus(pad_rows(out.flatten(1), x.shape[0]), residual)

    def write_kv(self, x: torch.Tensor, layer: torch.Tensor, step: AttentionStep) -> None:
        project_and_store(self.project, x, layer, step, self._kv_scales)


def project_and_store(
    project: Projection,
    x: torch.Tensor,
    layer: torch.Tensor,
    step: AttentionStep,
    scales: KVScales,  # of codes
) -> tuple[torch.Tensor, torch.Tensor]:  # as of a `Projection`
    """The projection with its KV write, into a pool of any type.

    Projections write the type of activations. For a pool of codes they write to slots of their own,
    one for each query token, and all codes are rounded in one place.
    """
    if not is_narrow(layer):
        return project(x, layer, step)
    num_query = step.slots.shape[0]
    wide = torch.empty(num_query, 1, *layer.shape[2:], dtype=x.dtype, device=x.device)
    own_slots = torch.arange(num_query, device=x.device)
    projected = project(x, wide, replace(step, slots=own_slots))
    scales.shrink_(wide[:, 0])
    store_codes(layer, step.slots, wide[:, 0])
    return projected


def pad_rows(x: torch.Tensor, rows: int) -> torch.Tensor:  # [n, ...] -> [rows, ...]
    """`x` itself if it has that many rows, else with rows of zeros appended."""
    if x.shape[0] == rows:
        return x
    return F.pad(x, (0, 0) * (x.ndim - 1) + (0, rows - x.shape[0]))
