"""The stored projections of latent attention, and their absorbed form, which is made at load."""

from collections.abc import Iterator
from functools import partial
from typing import Protocol

import torch

from outrider.models.layers.mla import (
    LatentAttention,
    LatentProjections,
    LowRankQueries,
    QueryProjection,
    WholeQueries,
    score_scale,
)
from outrider.models.model_config import LatentConfig
from outrider.models.partial_rope_tensors import split_rotary_pairs
from outrider.models.rope_config import RopeConfig
from outrider.ops.linear.any_weight import AnyWeight, rearrange_rows, stack_weights
from outrider.ops.linear.linear import Linear
from outrider.ops.norm_rope.rms_norm import Norm, make_norm

_EPS = 1e-6  # of the norms of latents and queries; independent of rms_norm_eps

Shape = tuple[int, ...]


class LatentReader(Protocol):
    """Reads tensors and makes projections of them."""

    def read(self, *names: str) -> torch.Tensor:
        """The tensors, stacked, on the device in the dtype of activations."""
        ...

    def weight(self, *names: str) -> AnyWeight:
        """The weights of a linear layer, stacked, on the device; quantised if stored so."""
        ...

    def make_linear(self, weight: AnyWeight) -> Linear: ...


def latent_shapes(config: LatentConfig, hidden: int) -> Iterator[tuple[str, Shape]]:
    """Name below `self_attn.` and shape of every tensor."""
    queries = config.heads * (config.nope + config.rope)
    if config.query_rank:
        yield "q_a_proj.weight", (config.query_rank, hidden)
        yield "q_a_layernorm.weight", (config.query_rank,)
        yield "q_b_proj.weight", (queries, config.query_rank)
    else:
        yield "q_proj.weight", (queries, hidden)
    yield "kv_a_proj_with_mqa.weight", (config.width, hidden)
    yield "kv_a_layernorm.weight", (config.latent,)
    yield "kv_b_proj.weight", (config.heads * (config.nope + config.value), config.latent)
    yield "o_proj.weight", (hidden, config.heads * config.value)


def load_latent_attention(
    config: LatentConfig, rope: RopeConfig, prefix: str, reader: LatentReader
) -> LatentAttention:
    """The attention whose tensor names begin with `prefix`."""

    def rotated(name: str, dim: int) -> AnyWeight:
        weight = reader.weight(prefix + name)
        if not is_interleaved:
            return weight
        split = partial(split_rotary_pairs, dim=dim, rope=config.rope)
        return rearrange_rows(weight, split)

    is_interleaved, head = rope.is_interleaved, config.nope + config.rope
    latents = rotated("kv_a_proj_with_mqa.weight", config.width)
    queries: QueryProjection = WholeQueries()
    if config.query_rank:
        first = reader.weight(prefix + "q_a_proj.weight")
        queries = LowRankQueries(
            norm=make_norm(reader.read(prefix + "q_a_layernorm.weight"), _EPS),
            up=reader.make_linear(rotated("q_b_proj.weight", head)),
        )
    else:
        first = rotated("q_proj.weight", head)
    return LatentAttention(
        config,
        scale=score_scale(config, rope),
        down=reader.make_linear(stack_weights([first, latents])),
        queries=queries,
        norm=_norm(prefix, reader),
        projections=split_projections(reader.read(prefix + "kv_b_proj.weight"), config),
        output=reader.make_linear(reader.weight(prefix + "o_proj.weight")),
    )


def split_projections(weight: torch.Tensor, config: LatentConfig) -> LatentProjections:
    """The key and value projections of every head, out of the stored kv_b_proj."""
    heads = weight.view(config.heads, config.nope + config.value, config.latent)
    key, value = heads[:, : config.nope], heads[:, config.nope :]
    return LatentProjections(key=key.contiguous(), value=value.contiguous())


def _norm(prefix: str, reader: LatentReader) -> Norm:
    return make_norm(reader.read(prefix + "kv_a_layernorm.weight"), _EPS)
