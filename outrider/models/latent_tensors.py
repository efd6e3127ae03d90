"""The stored projections of latent attention, and their absorbed form, which is made at load."""

from collections.abc import Iterator
from functools import partial
from typing import Protocol

import torch

from outrider.models.layers.mla import (
    LatentAttention,
    LatentProjections,
    LatentWriter,
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

LATENT_EPS = 1e-6  # of the norms of latents and queries in targets; independent of rms_norm_eps

KV_A = "kv_a_proj_with_mqa.weight"  # from the input to the latent and the rotary key

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


def latent_shapes(
    config: LatentConfig,
    *,
    read: int,  # width of the input
    hidden: int,  # width of the output
) -> Iterator[tuple[str, Shape]]:
    """Name below `self_attn.` and shape of every tensor."""
    queries = config.heads * (config.nope + config.rope)
    if config.query_rank:
        yield "q_a_proj.weight", (config.query_rank, read)
        yield "q_a_layernorm.weight", (config.query_rank,)
        yield "q_b_proj.weight", (queries, config.query_rank)
    else:
        yield "q_proj.weight", (queries, read)
    yield KV_A, (config.width, read)
    yield "kv_a_layernorm.weight", (config.latent,)
    yield "kv_b_proj.weight", (config.heads * (config.nope + config.value), config.latent)
    yield "o_proj.weight", (hidden, config.heads * config.value)


def load_latent_attention(
    config: LatentConfig,
    rope: RopeConfig,
    prefix: str,
    reader: LatentReader,
    *,
    norm_eps: float = LATENT_EPS,
) -> LatentAttention:
    """The attention whose tensor names begin with `prefix`."""
    rotated = partial(_rotated, config, rope, reader)
    head = config.nope + config.rope
    queries: QueryProjection = WholeQueries()
    if config.query_rank:
        first = reader.weight(prefix + "q_a_proj.weight")
        queries = LowRankQueries(
            norm=make_norm(reader.read(prefix + "q_a_layernorm.weight"), norm_eps),
            up=reader.make_linear(rotated(prefix + "q_b_proj.weight", head)),
        )
    else:
        first = rotated(prefix + "q_proj.weight", head)
    return LatentAttention(
        config,
        scale=score_scale(config, rope),
        down=reader.make_linear(stack_weights([first, rotated(prefix + KV_A, config.width)])),
        queries=queries,
        norm=_norm(prefix, reader, norm_eps),
        projections=split_projections(reader.read(prefix + "kv_b_proj.weight"), config),
        output=reader.make_linear(reader.weight(prefix + "o_proj.weight")),
    )


def load_latent_writer(
    config: LatentConfig, rope: RopeConfig, prefix: str, reader: LatentReader, *, norm_eps: float
) -> LatentWriter:
    """The part of such an attention that writes latents. Its projection is a copy."""
    weight = _rotated(config, rope, reader, prefix + KV_A, config.width)
    return LatentWriter(project=reader.make_linear(weight), norm=_norm(prefix, reader, norm_eps))


def _rotated(
    config: LatentConfig, rope: RopeConfig, reader: LatentReader, name: str, dim: int
) -> AnyWeight:
    """A weight whose output is rotated; channels that are rotated together lie half apart."""
    weight = reader.weight(name)
    if not rope.is_interleaved:
        return weight
    return rearrange_rows(weight, partial(split_rotary_pairs, dim=dim, rope=config.rope))


def split_projections(weight: torch.Tensor, config: LatentConfig) -> LatentProjections:
    """The key and value projections of every head, out of the stored kv_b_proj."""
    heads = weight.view(config.heads, config.nope + config.value, config.latent)
    key, value = heads[:, : config.nope], heads[:, config.nope :]
    return LatentProjections(key=key.contiguous(), value=value.contiguous())


def _norm(prefix: str, reader: LatentReader, eps: float) -> Norm:
    return make_norm(reader.read(prefix + "kv_a_layernorm.weight"), eps)
