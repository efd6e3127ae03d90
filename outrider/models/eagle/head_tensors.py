"""The tensors of a head: canonical names for all dialects, and their shapes."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

from outrider.models.dflash.dflash_tensors import block_shapes
from outrider.models.eagle.head_config import BlockHeadConfig, HeadConfig, HeadLayerConfig
from outrider.models.latent_tensors import latent_shapes
from outrider.models.model_config import LatentConfig

EMBEDDING = "embed_tokens.weight"
HEAD = "lm_head.weight"
TO_TARGET = "d2t"  # [draft_vocab] target id minus draft id
TO_DRAFT = "t2d"  # [vocab] whether a target id can be drafted
MASK_STATE = "mask_hidden"  # [aux width] of P-EAGLE: the aux states of a mask
LAYER = "layers.0."  # of an EAGLE head: its first layer
TOKEN_MAP = "token_map"  # [draft_vocab] of Medusa: the target id of each draft id
MAPS = (TO_TARGET, TO_DRAFT, TOKEN_MAP)  # integers and booleans; all else is floating point

_PREFIX = re.compile(r"^(?:draft_model\.|model\.)+")
_IGNORED = re.compile(r"(?:^|\.)rotary_emb\.|^verifier_")
_OTHER_STEMS = {
    "logit_head": "markov_head",
    "aux_norm_low": "fc_norm.0",
    "aux_norm_mid": "fc_norm.1",
    "aux_norm_high": "fc_norm.2",
    "context_proj": "fc",
    "context_norm": "hidden_norm",
    "final_norm": "norm",
}

Shape = tuple[int, ...]
Stored = TypeVar("Stored")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTensors:
    """Shapes by canonical name. For an optional tensor that is not stored, the target's is used."""

    needed: dict[str, Shape]
    optional: dict[str, Shape]

    def shape(self, name: str) -> Shape:
        return self.needed[name] if name in self.needed else self.optional[name]


def layer_prefix(index: int) -> str:
    """How the names of the tensors of a decoder layer begin."""
    return f"layers.{index}."


def canonical_head(name: str) -> str:
    """The canonical name of a stored tensor."""
    name = _PREFIX.sub("", name)
    if name.startswith("midlayer."):
        return LAYER + name.removeprefix("midlayer.")
    stem, dot, rest = name.partition(".")
    return _OTHER_STEMS.get(stem, stem) + dot + rest


class HeadAdapterNames:
    """The modules of an adapter of a head, in any dialect (`AdapterNames`)."""

    def as_found(self, stored: Collection[str], /) -> "HeadAdapterNames":
        del stored
        return self

    def our_name(self, stored: str, /) -> str:
        return canonical_head(stored)


def canonical_tensors(
    stored: Mapping[str, Stored], name_of: Callable[[str], str] = canonical_head
) -> tuple[dict[str, Stored], tuple[str, ...]]:
    """Tensors by canonical name without redundant ones, and names that are stored twice."""
    tensors: dict[str, Stored] = {}
    twice = []
    for stored_name, tensor in stored.items():
        name = name_of(stored_name)
        if _IGNORED.search(name):
            continue
        if name in tensors:
            twice.append(name)
        tensors[name] = tensor
    return tensors, tuple(twice)


def expected_tensors(config: HeadConfig, *, target_hidden: int) -> ExpectedTensors:
    """The tensors of such a head, and those that it may share with a target of this width."""
    needed = _eagle_shapes(config) if config.blocks is None else _block_head(config, config.blocks)
    optional: dict[str, Shape] = {TO_DRAFT: (config.output.vocab,)}
    optional |= _unused_norms(config)
    output, width = config.output, config.width
    is_whole, is_as_wide = output.draft_vocab == output.vocab, width == target_hidden
    (optional if is_as_wide else needed)[EMBEDDING] = (output.vocab, width)
    (optional if is_whole and is_as_wide else needed)[HEAD] = (output.draft_vocab, width)
    (optional if is_whole else needed)[TO_TARGET] = (output.draft_vocab,)
    return ExpectedTensors(needed=needed, optional=optional)


def _eagle_shapes(config: HeadConfig) -> dict[str, Shape]:
    """The tensors of an EAGLE head: its layers, and what is around them."""
    read = config.width if config.origin.algorithm == "eagle" else 2 * config.width
    shapes = _layer_shapes(config, LAYER, read=read) | _own_shapes(config)
    for prefix in map(layer_prefix, range(1, config.num_layers)):
        shapes |= _later_shapes(config, prefix)
    return shapes


def _later_shapes(config: HeadConfig, prefix: str) -> dict[str, Shape]:
    """A layer that reads the stream through a norm."""
    shapes = _layer_shapes(config, prefix, read=config.width)
    return shapes | {f"{prefix}{config.later_norms[0]}.weight": (config.width,)}


def _unused_norms(config: HeadConfig) -> dict[str, Shape]:
    """Norms that exporters write for every layer, and that later layers do not apply."""
    return {
        f"{layer_prefix(index)}{name}.weight": (config.width,)
        for index in range(1, config.num_layers)
        for name in config.later_norms[1:]
    }


def _block_head(config: HeadConfig, blocks: BlockHeadConfig) -> dict[str, Shape]:
    """The tensors of a head that drafts blocks."""
    if config.origin.algorithm == "peagle":
        return _eagle_shapes(config) | {MASK_STATE: (config.aux.width,)}
    shapes = block_shapes(config, blocks)
    for prefix in map(layer_prefix, range(config.num_layers)):
        shapes |= _later_shapes(config, prefix)
    return shapes


def _layer_shapes(config: HeadConfig, prefix: str, *, read: int) -> dict[str, Shape]:
    """Attention, MLP and the norm between them: the same for all heads."""
    width, wide = config.width, config.layer.block.intermediate
    attention = _attention_shapes(config.layer, read=read, width=width)
    shapes: dict[str, Shape] = {
        **{f"self_attn.{name}": shape for name, shape in attention.items()},
        "mlp.gate_proj.weight": (wide, width),
        "mlp.up_proj.weight": (wide, width),
        "mlp.down_proj.weight": (width, wide),
        "post_attention_layernorm.weight": (width,),
    }
    return {prefix + name: shape for name, shape in shapes.items()}


def _attention_shapes(layer: HeadLayerConfig, *, read: int, width: int) -> dict[str, Shape]:
    heads = layer.attention
    if isinstance(heads, LatentConfig):
        return dict(latent_shapes(heads, read=read, hidden=width))
    query, key = heads.heads * heads.head_dim, heads.kv_heads * heads.head_dim
    shapes: dict[str, Shape] = {
        "q_proj.weight": (query, read),
        "k_proj.weight": (key, read),
        "v_proj.weight": (key, read),
        "o_proj.weight": (width, query),
    }
    for name in layer.biased:
        shapes[f"{name}.bias"] = shapes[f"{name}.weight"][:1]
    if layer.has_head_norm:
        shapes["q_norm.weight"] = shapes["k_norm.weight"] = (heads.head_dim,)
    return shapes


def _own_shapes(config: HeadConfig) -> dict[str, Shape]:
    """The tensors around the layer: input projection, norms and biases."""
    aux, width = config.aux, config.width
    shapes: dict[str, Shape] = {}
    if config.origin.algorithm == "eagle":
        shapes["fc.weight"] = (width, 2 * width)
    else:
        shapes[LAYER + "input_layernorm.weight"] = (width,)
        shapes[LAYER + "hidden_norm.weight"] = (width,)
        shapes["norm.weight"] = (width,)
    if aux.is_projected:
        shapes["fc.weight"] = (width, aux.width)
    if aux.has_bias:
        shapes["fc.bias"] = (width,)
    if aux.norm == "joint":
        shapes["input_norm.weight"] = (aux.width,)
    if aux.norm == "each":
        norms = range(len(aux.aux_layers.layers))
        shapes |= {f"fc_norm.{index}.weight": (aux.target_hidden,) for index in norms}
    return shapes
