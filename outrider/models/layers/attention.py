"""The attention part of a block: projections, rotation, the KV write, and the backend's run."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from outrider.attention.protocol import AttentionBackend
from outrider.memory.pool import write_kv
from outrider.models.config import AttentionConfig
from outrider.models.layers.linear import Linear
from outrider.models.layers.norm import Norm
from outrider.models.layers.rope import Rotation, rotate_


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionStep:
    """What all layers of one step share."""

    rotation: Rotation
    slots: torch.Tensor  # [num_query] where the KV of each query token is written
    backend: AttentionBackend
    plan: Any  # the backend's part of the step's plan


class HeadNorm(Protocol):
    """Prepares queries and keys for rotation."""

    def apply_(self, heads: torch.Tensor) -> None: ...  # [num_query, heads + kv_heads, head_dim]


class NormEachHead:
    """Normalises queries and keys per head, in place. The norm's weight is [heads, head_dim]."""

    def __init__(self, norm: Norm) -> None:
        self._norm = norm

    def apply_(self, heads: torch.Tensor) -> None:
        heads.copy_(self._norm(heads))


class NoHeadNorm:
    """Leaves them as projected."""

    def apply_(self, heads: torch.Tensor) -> None:
        pass


class SelfAttention:
    """Owns the fused query, key and value map and the output map."""

    def __init__(
        self, config: AttentionConfig, *, qkv: Linear, head_norm: HeadNorm, output: Linear
    ) -> None:
        self._config = config
        self._qkv = qkv
        self._head_norm = head_norm
        self._output = output
        self._scale = config.head_dim**-0.5

    def __call__(
        self,
        x: torch.Tensor,  # [n, hidden] normalised; n is num_query or more
        residual: torch.Tensor,  # [n, hidden]
        layer: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim]
        step: AttentionStep,
    ) -> torch.Tensor:  # [n, hidden]
        config, num_query = self._config, step.slots.shape[0]
        # One tensor holds the heads of queries, then keys, then values. Rotating it in place
        # leaves keys and values side by side, as the pool stores them.
        heads = self._qkv(x)[:num_query].view(num_query, -1, config.head_dim)
        rotated = heads[:, : config.heads + config.kv_heads]
        self._head_norm.apply_(rotated)
        rotate_(rotated, step.rotation)
        write_kv(layer, step.slots, heads[:, config.heads :])
        out = step.backend.run(heads[:, : config.heads], layer, step.plan, self._scale)
        return self._output.plus(pad_rows(out.flatten(1), x.shape[0]), residual)


def pad_rows(x: torch.Tensor, rows: int) -> torch.Tensor:  # [n, ...] -> [rows, ...]
    """`x` itself if it has that many rows, else with rows of zeros appended."""
    if x.shape[0] == rows:
        return x
    return F.pad(x, (0, 0) * (x.ndim - 1) + (0, rows - x.shape[0]))
