"""Latent attention: heads read one stored vector per token, a latent beside a rotated key.

Always in the absorbed form: a query is multiplied by its head's key projection before it is
compared with latents, and what a head reads by its value projection after. Keys and values are
never computed from latents.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from outrider.models.layers.attention_layer import AttentionStep, pad_rows
from outrider.models.model_config import LatentConfig
from outrider.models.rope_config import RopeConfig
from outrider.models.rope_scaling import YarnScaling
from outrider.ops.attention.latent_rope import rotate_queries, store_latents
from outrider.ops.linear.head_linear import head_linear
from outrider.ops.linear.linear import Linear
from outrider.ops.norm_rope.rms_norm import Norm
from outrider.ops.norm_rope.rotary import Rotation


class QueryProjection(Protocol):
    """The queries of all heads, from the query channels of the first projection."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...  # [n, in] -> [n, heads * dim]


class WholeQueries:
    """No second projection: the first one gives the queries themselves."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x


class LowRankQueries:
    """Owns the norm of the low-rank query channels, and the projection from them to queries."""

    def __init__(self, *, norm: Norm, up: Linear) -> None:
        self._norm = norm
        self._up = up

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._up(self._norm(x))


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentProjections:
    """The projections of every head from and to latents."""

    key: torch.Tensor  # [heads, nope, latent] from queries to latents
    value: torch.Tensor  # [heads, value, latent] from latents to values


class LatentAttention:
    """Owns the projections. The first one gives the low-rank or whole queries, and the latents."""

    def __init__(
        self,
        config: LatentConfig,
        *,
        scale: float,
        down: Linear,  # [hidden -> query channels + latent + rope]
        queries: QueryProjection,
        norm: Norm,  # of the latent
        projections: LatentProjections,
        output: Linear,  # [heads * value -> hidden]
    ) -> None:
        self._config = config
        self._scale = scale
        self._down = down
        self._queries = queries
        self._norm = norm
        self._projections = projections
        self._output = output

    def __call__(
        self,
        x: torch.Tensor,  # [n, hidden] normalised; n is num_query or more
        residual: torch.Tensor,  # [n, hidden]
        layer: torch.Tensor,  # [pages, page_size, 1, latent + rope]
        step: AttentionStep,
    ) -> torch.Tensor:  # [n, hidden]
        config, num_query, step = self._config, step.slots.shape[0], step.placed()
        low = self._down(x)
        queries = self._queries(low[:, : -config.width])[:num_query]
        self._store(low, layer, step)
        heads = queries.view(num_query, config.heads, config.nope + config.rope)
        absorbed = absorb(heads, self._projections.key, step.rotation)
        read = step.backend.run_latent(absorbed, layer, step.plan, self._scale, config.latent)
        values = read.new_empty(num_query, config.heads, config.value)
        head_linear(read, self._projections.value.transpose(1, 2), values)
        return self._output.plus(pad_rows(values.flatten(1), x.shape[0]), residual)

    def write_kv(self, x: torch.Tensor, layer: torch.Tensor, step: AttentionStep) -> None:
        self._store(self._down(x), layer, step)

    def _store(self, low: torch.Tensor, layer: torch.Tensor, step: AttentionStep) -> None:
        """Write the latents and rotated keys, the last channels of the first projection."""
        latents = low[: step.slots.shape[0], -self._config.width :]
        store_latents(latents, step.rotation, self._norm, layer, step.slots)


class LatentWriter:
    """Writes the latents of tokens whose own output is not needed."""

    def __init__(
        self,
        *,
        project: Linear,  # [hidden -> latent + rope]
        norm: Norm,  # of the latent
    ) -> None:
        self.min_rows = project.min_rows
        self._project = project
        self._norm = norm

    def __call__(self, x: torch.Tensor, layer: torch.Tensor, step: AttentionStep) -> None:
        latents = self._project(x)[: step.slots.shape[0]]
        store_latents(latents, step.rotation, self._norm, layer, step.slots)


def absorb(
    heads: torch.Tensor,  # [num_query, heads, nope + rope]
    key_projection: torch.Tensor,  # [heads, nope, latent]
    rotation: Rotation,
) -> torch.Tensor:  # [num_query, heads, latent + rope]
    """Queries in the form that is compared with stored latents."""
    nope, latent = key_projection.shape[1:]
    num_query, num_heads, dim = heads.shape
    out = heads.new_empty(num_query, num_heads, latent + dim - nope)
    rotate_queries(heads, rotation, out)
    head_linear(heads[..., :nope], key_projection, out[..., :latent])
    return out


def score_scale(config: LatentConfig, rope: RopeConfig) -> float:
    """The factor of scores before the softmax; it grows with the context length."""
    scaling = rope.scaling
    growth = scaling.latent_factor if isinstance(scaling, YarnScaling) else 1.0
    return float((config.nope + config.rope) ** -0.5 * growth * growth)
