"""The attention part of a block: projections, rotation, the KV write, and the backend's run."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from outrider.kv.kv_pool import write_kv
from outrider.models.layers.linear import Linear
from outrider.models.layers.rms_norm import Norm
from outrider.models.layers.rotary import Rotation, rotate_
from outrider.models.model_config import AttentionConfig
from outrider.step.attention_backend import AttentionBackend
from outrider.step.plan import AttentionPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionStep:
    """What all layers of one step share."""

    rotation: Rotation
    slots: torch.Tensor  # [num_query] where the KV of each query token is written
    backend: AttentionBackend
    plan: AttentionPlan  # the backend's part of the step's plan


class Attention(Protocol):
    """The residual plus what every query token reads from the texts; writes their KV."""

    def __call__(
        self,
        x: torch.Tensor,  # [n, hidden] normalised; n is num_query or more
        residual: torch.Tensor,  # [n, hidden] may be overwritten
        layer: Any,  # [pages, page_size, vectors, width], or what layers with a state keep
        step: AttentionStep,
    ) -> torch.Tensor: ...  # [n, hidden]


class HeadNorm(Protocol):
    """Prepares queries and keys for rotation."""

    weight: torch.Tensor  # [heads + kv_heads, head_dim]; no rows where nothing is normalised
    eps: float

    def apply_(self, heads: torch.Tensor) -> None: ...  # [num_query, heads + kv_heads, head_dim]


class NormEachHead:
    """Normalises queries and keys per head, in place. The norm's weight is [heads, head_dim]."""

    def __init__(self, norm: Norm) -> None:
        self.weight = norm.weight
        self.eps = norm.eps
        self._norm = norm

    def apply_(self, heads: torch.Tensor) -> None:
        heads.copy_(self._norm(heads))


class NoHeadNorm:
    """Leaves them as projected."""

    def __init__(self) -> None:
        self.weight = torch.empty((0, 0), device="cpu")
        self.eps = 0.0

    def apply_(self, heads: torch.Tensor) -> None:
        pass


class Projection(Protocol):
    """Queries of all query tokens, turned to their positions, and the gates of what they will
    read, with no heads where there are none; writes keys and values.
    """

    def __call__(
        self,
        x: torch.Tensor,  # [n, hidden]; n is num_query or more
        layer: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim]
        step: AttentionStep,
    ) -> tuple[torch.Tensor, torch.Tensor]: ...  # [num_query, heads, head_dim] both


class SplitProjection:
    """The fused map to queries, keys, values and gates, then the rest: for any map and norm."""

    def __init__(
        self,
        config: AttentionConfig,
        *,
        qkv: Linear,
        head_norm: HeadNorm,
        has_gates: bool = False,  # behind the values
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
    """Says how much of what each head has read counts."""

    def __call__(
        self,
        read: torch.Tensor,  # [num_query, heads, head_dim]
        gates: torch.Tensor,  # [num_query, heads, head_dim]; no heads where there are none
    ) -> torch.Tensor: ...  # [num_query, heads, head_dim]


class NoGate:
    """All of it."""

    def __call__(self, read: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        del gates
        return read


class SigmoidGate:
    """A share of every lane."""

    def __call__(self, read: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(gates).mul_(read)


class SelfAttention:
    """Owns the projection, the gate and the output map."""

    def __init__(
        self, config: AttentionConfig, *, project: Projection, gate: OutputGate, output: Linear
    ) -> None:
        self._project = project
        self._gate = gate
        self._output = output
        self._scale = config.head_dim**-0.5

    def __call__(
        self,
        x: torch.Tensor,  # [n, hidden] as the projection reads it; n is num_query or more
        residual: torch.Tensor,  # [n, hidden]
        layer: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim]
        step: AttentionStep,
    ) -> torch.Tensor:  # [n, hidden]
        queries, gates = self._project(x, layer, step)
        out = self._gate(step.backend.run(queries, layer, step.plan, self._scale), gates)
        return self._output.plus(pad_rows(out.flatten(1), x.shape[0]), residual)


def rotate_and_store(
    heads: torch.Tensor,  # [num_query, heads + 2 * kv_heads, head_dim] queries, keys, values
    rotation: Rotation,
    norm: HeadNorm,
    layer: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim]
    slots: torch.Tensor,  # [num_query]
) -> None:
    """Turn queries, where they stand, and keys to their positions; store keys and values.

    What is left of keys in `heads` is nobody's: attention reads them from the pool.
    """
    if heads.is_cuda:
        from outrider.ops.norm_rope.rotary_triton import rotate_and_store as launch

        launch(heads, (rotation.cos, rotation.sin), (norm.weight, norm.eps), layer, slots)
        return
    # Rotating in place leaves keys and values side by side, as the pool stores them.
    num_kv = layer.shape[2]
    rotated = heads[:, : heads.shape[1] - num_kv // 2]
    norm.apply_(rotated)
    rotate_(rotated, rotation)
    write_kv(layer, slots, heads[:, -num_kv:])


def pad_rows(x: torch.Tensor, rows: int) -> torch.Tensor:  # [n, ...] -> [rows, ...]
    """`x` itself if it has that many rows, else with rows of zeros appended."""
    if x.shape[0] == rows:
        return x
    return F.pad(x, (0, 0) * (x.ndim - 1) + (0, rows - x.shape[0]))
