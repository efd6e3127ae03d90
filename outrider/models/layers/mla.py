"""Latent attention: heads read one stored vector per token, a latent beside a rotated key.

Everywhere in the absorbed form: a query's part for the latent goes through its head's key map
before it is compared, and what a head read goes through its value map after. Keys and values are
never made of the latents.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from outrider.kv.kv_pool import write_kv
from outrider.models.layers.attention_layer import AttentionStep, pad_rows
from outrider.models.layers.linear import Linear
from outrider.models.layers.rms_norm import Norm
from outrider.models.layers.rotary import Rotation, rotate_
from outrider.models.model_config import LatentConfig, RopeConfig
from outrider.models.rope_scaling import YarnScaling


class QueryMap(Protocol):
    """Makes the queries of all heads of what the first map left for them."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...  # [n, in] -> [n, heads * dim]


class WholeQueries:
    """The first map made them already."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x


class LowRankQueries:
    """Owns the norm of the few lanes that queries are made of, and the map from them."""

    def __init__(self, *, norm: Norm, up: Linear) -> None:
        self._norm = norm
        self._up = up

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._up(self._norm(x))


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentMaps:
    """What ties each head to the latents."""

    key: torch.Tensor  # [heads, nope, latent] from queries to latents
    value: torch.Tensor  # [heads, value, latent] from latents to values


class LatentAttention:
    """Owns the maps; the first one makes queries, or what they are made of, and latents."""

    def __init__(
        self,
        config: LatentConfig,
        *,
        scale: float,
        down: Linear,  # [hidden -> query lanes + latent + rope]
        queries: QueryMap,
        norm: Norm,  # of the latent
        maps: LatentMaps,
        output: Linear,  # [heads * value -> hidden]
    ) -> None:
        self._config = config
        self._scale = scale
        self._down = down
        self._queries = queries
        self._norm = norm
        self._maps = maps
        self._output = output

    def __call__(
        self,
        x: torch.Tensor,  # [n, hidden] normalised; n is num_query or more
        residual: torch.Tensor,  # [n, hidden]
        layer: torch.Tensor,  # [pages, page_size, 1, latent + rope]
        step: AttentionStep,
    ) -> torch.Tensor:  # [n, hidden]
        config, num_query = self._config, step.slots.shape[0]
        low = self._down(x)
        queries = self._queries(low[:, : -config.width])[:num_query]
        store_latents(
            low[:num_query, -config.width :], step.rotation, self._norm, layer, step.slots
        )
        heads = queries.view(num_query, config.heads, config.nope + config.rope)
        absorbed = absorb(heads, self._maps.key, step.rotation)
        read = step.backend.run_latent(absorbed, layer, step.plan, self._scale, config.latent)
        values = read.new_empty(num_query, config.heads, config.value)
        apply_each_head(read, self._maps.value.transpose(1, 2), values)
        return self._output.plus(pad_rows(values.flatten(1), x.shape[0]), residual)


def store_latents(
    latents: torch.Tensor,  # [num_query, latent + rope] may be overwritten
    rotation: Rotation,
    norm: Norm,
    layer: torch.Tensor,  # [pages, page_size, 1, latent + rope]
    slots: torch.Tensor,  # [num_query]
) -> None:
    """Normalise every latent, turn the key beside it, and store both."""
    if latents.is_cuda:
        from outrider.ops.attention.latent_rope_triton import store_latents as launch

        launch(latents, (rotation.cos, rotation.sin), (norm.weight, norm.eps), layer, slots)
        return
    width = norm.weight.shape[0]
    latents[:, :width] = norm(latents[:, :width])
    rotate_(latents[:, None, width:], rotation)
    write_kv(layer, slots, latents[:, None])


def absorb(
    heads: torch.Tensor,  # [num_query, heads, nope + rope]
    key_map: torch.Tensor,  # [heads, nope, latent]
    rotation: Rotation,
) -> torch.Tensor:  # [num_query, heads, latent + rope]
    """Queries as latents are compared with them."""
    nope, latent = key_map.shape[1:]
    num_query, num_heads, dim = heads.shape
    out = heads.new_empty(num_query, num_heads, latent + dim - nope)
    if heads.is_cuda:
        from outrider.ops.attention.latent_rope_triton import rotate_queries

        rotate_queries(heads, (rotation.cos, rotation.sin), out)
    else:
        out[..., latent:] = heads[..., nope:]
        rotate_(out[..., latent:], rotation)
    apply_each_head(heads[..., :nope], key_map, out[..., :latent])
    return out


def apply_each_head(
    x: torch.Tensor,  # [n, heads, in]
    weights: torch.Tensor,  # [heads, in, out], any strides
    out: torch.Tensor,  # [n, heads, out] is written
) -> None:
    """Every head's vector through the map of that head."""
    if x.is_cuda:
        from outrider.ops.linear.head_linear_triton import apply_head_maps

        apply_head_maps(x, weights, out)
    else:
        out.copy_((x.transpose(0, 1) @ weights).transpose(0, 1))


def score_scale(config: LatentConfig, rope: RopeConfig) -> float:
    """What scores are multiplied by before the softmax; a longer context makes it grow."""
    scaling = rope.scaling
    growth = scaling.latent_factor if isinstance(scaling, YarnScaling) else 1.0
    return float((config.nope + config.rope) ** -0.5 * growth * growth)
