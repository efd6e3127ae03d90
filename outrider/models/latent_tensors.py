"""How the maps of latent attention are stored, and how they become the absorbed form at load."""

from collections.abc import Iterator
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
from outrider.models.model_config import LatentConfig, RopeConfig
from outrider.ops.linear.linear import Linear
from outrider.ops.norm_rope.rms_norm import Norm, make_norm

_EPS = 1e-6  # of the norms inside, whatever the model's other norms have

Shape = tuple[int, ...]


class LatentReader(Protocol):
    """Where tensors come from, and how they become maps."""

    def read(self, *names: str) -> torch.Tensor:
        """The tensors, one below the other, on the device in the type of activations."""
        ...

    def make_linear(self, weight: torch.Tensor) -> Linear: ...


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
    """The attention whose tensors have names that begin so."""

    def turned(name: str, dim: int) -> torch.Tensor:
        weight = reader.read(prefix + name)
        return split_rotary_pairs(weight, dim=dim, rope=config.rope) if is_interleaved else weight

    is_interleaved, head = rope.is_interleaved, config.nope + config.rope
    latents = turned("kv_a_proj_with_mqa.weight", config.width)
    queries: QueryProjection = WholeQueries()
    if config.query_rank:
        first = reader.read(prefix + "q_a_proj.weight")
        queries = LowRankQueries(
            norm=make_norm(reader.read(prefix + "q_a_layernorm.weight"), _EPS),
            up=reader.make_linear(turned("q_b_proj.weight", head)),
        )
    else:
        first = turned("q_proj.weight", head)
    return LatentAttention(
        config,
        scale=score_scale(config, rope),
        down=reader.make_linear(torch.cat([first, latents])),
        queries=queries,
        norm=_norm(prefix, reader),
        projections=split_projections(reader.read(prefix + "kv_b_proj.weight"), config),
        output=reader.make_linear(reader.read(prefix + "o_proj.weight")),
    )


def split_projections(weight: torch.Tensor, config: LatentConfig) -> LatentProjections:
    """The two maps of every head out of the one that would make keys and values of latents."""
    heads = weight.view(config.heads, config.nope + config.value, config.latent)
    key, value = heads[:, : config.nope], heads[:, config.nope :]
    return LatentProjections(key=key.contiguous(), value=value.contiguous())


def split_rotary_pairs(
    weight: torch.Tensor,  # [rows, in], the last `rope` of every `dim` rows are rotated
    *,
    dim: int,
    rope: int,
) -> torch.Tensor:  # [rows, in]
    """The map whose rotated lanes lie as layers rotate them: a pair half of them apart.

    The same order for queries and keys changes no score.
    """
    heads = weight.view(-1, dim, weight.shape[1])
    plain, turned = heads[:, : dim - rope], heads[:, dim - rope :]
    apart = torch.cat([plain, turned[:, 0::2], turned[:, 1::2]], dim=1)
    return apart.view_as(weight)


def _norm(prefix: str, reader: LatentReader) -> Norm:
    return make_norm(reader.read(prefix + "kv_a_layernorm.weight"), _EPS)
