"""Reads the config.json of a DeepSeek-V4 model, with the field names of the hub or of transformers.
Strict: a field that is not understood is refused by name.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outrider.config.settings import USUAL_PAGE
from outrider.errors import ConfigError
from outrider.models.config_fields import (
    MOST_LAYERS,
    check_experts,
    read_list,
    read_number_or,
    read_object,
    read_real,
    read_size,
    read_size_or,
)
from outrider.models.deepseek_v4.compression import CompressedBlocks, NoBlocks
from outrider.models.deepseek_v4.dspark_config import V4DSparkConfig, parse_v4_dspark
from outrider.models.quantised.quantisation import parse_quantisation
from outrider.models.quantised.quantisation_files import quantisation_in
from outrider.models.rope_config import RopeConfig
from outrider.models.rope_scaling import parse_scaling, rope_settings
from outrider.ops.moe.routing_config import RoutingConfig

_UNSUPPORTED_UNLESS: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "is_causal": (True,),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "num_key_value_heads": (1,),
    "n_shared_experts": (1,),
    "norm_topk_prob": (True,),
    "scoring_func": ("sqrtsoftplus",),
    "tie_word_embeddings": (False,),
    "topk_method": ("noaux_tc", None),
}
_SLIDING, _SPARSE, _HEAVY = (
    "sliding_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
)
_KINDS = {0: _SLIDING, 4: _SPARSE, 128: _HEAVY}  # by the ratios that hub folders list
_RATIOS = {_SPARSE: 4, _HEAVY: 128}  # unless the config has others
_OLDER_RATIOS = {
    "compress_rate_csa": _SPARSE,
    "compress_rate_hca": _HEAVY,
}  # these win over compress_rates
_USUALLY_HASHED = 3  # layers


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsConfig:
    """Query heads over one shared vector per token, which is both key and value."""

    heads: int
    head_dim: int
    rope_dim: int  # the last channels of a head are rotated by position
    query_rank: int
    output_groups: int
    output_rank: int  # of each group


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexConfig:
    """Sizes of the index that selects entries of overlapping blocks."""

    heads: int
    head_dim: int
    top_k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class V4AttentionConfig:
    """What a query reads: a sliding window, and entries of older blocks."""

    heads: HeadsConfig
    index: IndexConfig
    window: int
    layers: tuple[CompressedBlocks | NoBlocks, ...]
    window_rope: RopeConfig  # of layers without blocks
    block_rope: RopeConfig  # of the others


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsConfig:
    """The residual streams, and how they are mixed."""

    num: int
    rounds: int  # of Sinkhorn-Knopp, which makes rows and columns of the mixture sum to one
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedConfig:
    """The experts of every layer. The layers in `hashed` route by token id."""

    num: int
    intermediate: int
    code_group: int  # channels that share a scale in the stored weights; 0: no number is stated
    routing: RoutingConfig
    hashed: frozenset[int]
    limit: float  # gates are clamped above it, and the gated values at both signs of it


@dataclass(frozen=True, slots=True, kw_only=True)
class V4Config:
    """Everything the decoder is built from, besides its weights."""

    num_layers: int
    vocab_size: int
    max_context: int
    hidden: int
    norm_eps: float
    attention: V4AttentionConfig
    streams: StreamsConfig
    feed: FeedConfig
    dspark: V4DSparkConfig | None = None  # of folders that hold such a drafter

    @property
    def num_streams(self) -> int:
        """Residual streams of a token."""
        return self.streams.num

    @property
    def rope(self) -> RopeConfig:
        """Of layers that read their window alone, as draft heads do with their text."""
        return self.attention.window_rope

    @property
    def usual_page_size(self) -> int:
        """Tokens per page unless the user sets another number: a page holds whole blocks."""
        layers = self.attention.layers
        ratios = (layer.ratio for layer in layers if isinstance(layer, CompressedBlocks))
        return math.lcm(USUAL_PAGE, *ratios)

    @property
    def has_experts(self) -> bool:
        """True: all layers have experts."""
        return True

    @property
    def has_axes(self) -> bool:
        """Its positions have one axis."""
        return False

    @property
    def takes_embeds(self) -> bool:
        """The experts of its first layers are chosen by token ids."""
        return False

    @property
    def has_row_state(self) -> bool:
        """True: rows have ring buffers outside of pages."""
        return True


def parse_v4(fields: Mapping[str, Any]) -> V4Config:
    """The decoder that the fields of a config.json describe."""
    for key, allowed in _UNSUPPORTED_UNLESS.items():
        if key in fields and fields[key] not in allowed:
            raise ConfigError(
                f"config.json sets {key} to {fields[key]}, but only {allowed[0]} is supported for "
                "DeepSeek-V4; use another model"
            )
    num_layers = read_size(fields, "num_hidden_layers", most=MOST_LAYERS)
    max_context = read_size(fields, "max_position_embeddings")
    vocab_size = read_size(fields, "vocab_size")
    return V4Config(
        num_layers=num_layers,
        vocab_size=vocab_size,
        max_context=max_context,
        hidden=read_size(fields, "hidden_size"),
        norm_eps=read_real(fields, "rms_norm_eps"),
        attention=_attention(fields, num_layers, max_context),
        streams=StreamsConfig(
            num=read_size(fields, "hc_mult"),
            rounds=read_size(fields, "hc_sinkhorn_iters"),
            eps=read_real(fields, "hc_eps"),
        ),
        feed=_feed(fields, num_layers),
        dspark=parse_v4_dspark(fields, num_layers=num_layers, vocab_size=vocab_size),
    )


def _attention(fields: Mapping[str, Any], num_layers: int, max_context: int) -> V4AttentionConfig:
    head_dim, rope_dim = read_size(fields, "head_dim"), _rope_dim(fields)
    heads = HeadsConfig(
        heads=read_size(fields, "num_attention_heads"),
        head_dim=head_dim,
        rope_dim=rope_dim,
        query_rank=read_size(fields, "q_lora_rank"),
        output_groups=read_size(fields, "o_groups"),
        output_rank=read_size(fields, "o_lora_rank"),
    )
    index = IndexConfig(
        heads=read_size(fields, "index_n_heads"),
        head_dim=read_size(fields, "index_head_dim"),
        top_k=read_size(fields, "index_topk"),
    )
    if (
        heads.heads % heads.output_groups
        or rope_dim % 2
        or rope_dim > min(head_dim, index.head_dim)
    ):
        raise ConfigError(
            f"config.json has {heads.heads} heads in {heads.output_groups} o_groups, head_dim "
            f"{head_dim}, index_head_dim {index.head_dim} and {rope_dim} rotated channels; groups "
            "must be equal, and channels even and part of both"
        )
    window_rope, block_rope = _ropes(fields, max_context)
    return V4AttentionConfig(
        heads=heads,
        index=index,
        window=read_size(fields, "sliding_window"),
        layers=_layers(fields, num_layers, index.head_dim),
        window_rope=window_rope,
        block_rope=block_rope,
    )


def _layers(
    fields: Mapping[str, Any], num_layers: int, index_width: int
) -> tuple[CompressedBlocks | NoBlocks, ...]:
    kinds, ratios = read_list(fields, "layer_types"), _ratios(fields)
    if fields.get("layer_types") is None:
        by_layer = read_list(fields, "compress_ratios")
        kinds = [_KINDS.get(ratio, f"ratio {ratio}") for ratio in by_layer]
    sparse, heavy = ratios[_SPARSE], ratios[_HEAVY]
    blocks: dict[str, CompressedBlocks | NoBlocks] = {
        _SLIDING: NoBlocks(),
        _SPARSE: CompressedBlocks(ratio=sparse, is_overlapping=True, index_width=index_width),
        _HEAVY: CompressedBlocks(ratio=heavy, is_overlapping=False, index_width=0),
    }
    # A hub folder also lists its draft modules, after the layers.
    if len(kinds) < num_layers or not all(kind in list(blocks) for kind in kinds):
        raise ConfigError(
            f"config.json must give each of {num_layers} layers one of {', '.join(blocks)} in "
            f"layer_types, got {kinds}; fix the field"
        )
    return tuple(blocks[kind] for kind in kinds[:num_layers])


def _ratios(fields: Mapping[str, Any]) -> dict[str, int]:
    """The ratio of each kind of layer."""
    rates = read_object(fields, "compress_rates")
    older = {kind: fields.get(key) for key, kind in _OLDER_RATIOS.items()}
    ratios = _RATIOS | rates | {kind: ratio for kind, ratio in older.items() if ratio is not None}
    if ratios.keys() - _RATIOS.keys():
        raise ConfigError(
            f"config.json must give ratios of {' and '.join(_RATIOS)} in compress_rates, got "
            f"{rates}; fix the field"
        )
    return {kind: read_size(ratios, kind) for kind in _RATIOS}


def _ropes(fields: Mapping[str, Any], max_context: int) -> tuple[RopeConfig, RopeConfig]:
    """The rotary settings of layers without blocks, and those of layers with blocks."""
    settings = rope_settings(fields)
    if isinstance(settings.get("main"), dict) and isinstance(settings.get("compress"), dict):
        plain, scaled = dict(settings["main"]), dict(settings["compress"])
    else:
        plain = {"rope_theta": read_real(fields, "rope_theta")}
        scaled = settings | {"rope_theta": read_real(fields, "compress_rope_theta")}
        if "yarn" in (scaled.get("rope_type"), scaled.get("type")):
            scaled.setdefault("attention_factor", 1.0)  # the model was trained with no other
    return _rope(plain, max_context), _rope(scaled, max_context)


def _rope(settings: dict[str, Any], max_context: int) -> RopeConfig:
    theta = read_real(settings, "rope_theta")
    settings.pop("rope_theta")
    settings.pop("partial_rotary_factor", None)  # read by `_rope_dim`
    return RopeConfig(theta=theta, scaling=parse_scaling(settings, max_context))


def _rope_dim(fields: Mapping[str, Any]) -> int:
    """Rotated channels of a head, from the hub's field or from that of transformers."""
    head_dim, share = read_size(fields, "head_dim"), fields.get("partial_rotary_factor")
    if share is None:
        return read_size(fields, "qk_rope_head_dim")
    channels = int(head_dim * read_real(fields, "partial_rotary_factor"))
    if (hubs := read_size_or(fields, "qk_rope_head_dim", channels)) != channels:
        raise ConfigError(
            f"config.json rotates {hubs} channels by qk_rope_head_dim and {channels} by "
            "partial_rotary_factor; fix one of them"
        )
    return channels


def _feed(fields: Mapping[str, Any], num_layers: int) -> FeedConfig:
    num, top_k = read_size(fields, "n_routed_experts"), read_size(fields, "num_experts_per_tok")
    check_experts(num, num_layers)
    if top_k > num:
        raise ConfigError(
            f"config.json selects {top_k} of {num} experts per token; fix num_experts_per_tok"
        )
    return FeedConfig(
        num=num,
        intermediate=read_size(fields, "moe_intermediate_size"),
        code_group=parse_quantisation(quantisation_in(fields)).group,
        routing=RoutingConfig(
            top_k=top_k,
            score="sqrtsoftplus",
            is_normed=True,
            scale=read_real(fields, "routed_scaling_factor"),
        ),
        hashed=_hashed(fields, num_layers),
        limit=read_real(fields, "swiglu_limit"),
    )


def _hashed(fields: Mapping[str, Any], num_layers: int) -> frozenset[int]:
    kinds = read_list(fields, "mlp_layer_types")
    if fields.get("mlp_layer_types") is None:
        num = read_number_or(fields, "num_hash_layers", _USUALLY_HASHED)
        return frozenset(range(min(num_layers, num)))
    if len(kinds) != num_layers or not all(kind in ("hash_moe", "moe") for kind in kinds):
        raise ConfigError(
            f"config.json must give each of {num_layers} layers hash_moe or moe in "
            f"mlp_layer_types, got {kinds}; fix the field"
        )
    return frozenset(layer for layer, kind in enumerate(kinds) if kind == "hash_moe")
