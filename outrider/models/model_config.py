"""Reads the config.json of a decoder. Unsupported fields are refused by name."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outrider.config.settings import USUAL_PAGE
from outrider.errors import ConfigError
from outrider.models.config_fields import (
    MOST_LAYERS,
    read_fields,
    read_real,
    read_real_or,
    read_size,
    read_size_or,
)
from outrider.models.expert_config import ExpertsConfig, NoExperts, parse_experts
from outrider.models.family import ExpertFamily, Family, LayerStyle
from outrider.models.layer_pattern import LayerPattern, parse_pattern
from outrider.models.multipliers import Multipliers, parse_multipliers
from outrider.models.quantised.quantisation import parse_quantisation
from outrider.models.quantised.quantisation_files import quantisation_in
from outrider.models.recurrent.recurrence import NO_RECURRENCE, NoRecurrence, Recurrence
from outrider.models.recurrent.recurrent_config import parse_recurrence
from outrider.models.registry import family_of
from outrider.models.rope_config import RopeConfig, check_pairs
from outrider.ops.attention.attention_rule import WHOLE_TEXT, AttentionRule

# Fields that would change the computation, and the values that the decoder supports.
_UNSUPPORTED_UNLESS: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "is_causal": (True,),
    "use_bidirectional_attention": (False, None),
    "use_qk_norm": (False, None),
    "partial_rotary_factor": (1.0,),
}

_ACTIVATIONS = {"silu": ("silu",), "gelu": ("gelu_pytorch_tanh",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockConfig:
    """Widths of the residual stream and of the MLP, and the epsilon of norms."""

    hidden: int
    intermediate: int
    norm_eps: float
    code_group: int  # channels that share a scale in the stored weights; 0: no number is stated


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """Attention with keys and values. Each kv head serves an equal group of query heads."""

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def channels(self) -> tuple[int, int]:
        """Of all queries of a token, and of all its keys."""
        return self.heads * self.head_dim, self.kv_heads * self.head_dim

    @property
    def vectors(self) -> int:
        """Vectors that a token stores: a key and a value for every kv head."""
        return 2 * self.kv_heads

    @property
    def width(self) -> int:
        """Channels of a stored vector."""
        return self.head_dim

    @property
    def rotary_dim(self) -> int:
        return self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentConfig:
    """Latent attention: a token stores one vector for all heads, a latent and a rotary key.

    A query head has `nope` channels for the latent's key and `rope` channels for the rotary key.
    """

    heads: int
    query_rank: int  # channels of the low-rank query projection; 0: there is none
    latent: int
    nope: int
    rope: int
    value: int  # channels of a head's value

    @property
    def vectors(self) -> int:
        return 1

    @property
    def width(self) -> int:
        return self.latent + self.rope

    @property
    def rotary_dim(self) -> int:
        return self.rope


AnyAttention = AttentionConfig | LatentConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The structure of a decoder, without its weights."""

    family: Family
    num_layers: int
    vocab_size: int
    max_context: int  # tokens, prompt and output together
    is_tied: bool  # the head is the embedding
    block: BlockConfig
    attention: AnyAttention
    pattern: LayerPattern
    multipliers: Multipliers
    experts: ExpertsConfig | NoExperts
    recurrence: Recurrence | NoRecurrence = NO_RECURRENCE

    @property
    def rope(self) -> RopeConfig:
        """Of layers that see their whole text, where the others have another one."""
        whole = [layer for layer, width in enumerate(self.pattern.windows) if width == WHOLE_TEXT]
        return self.pattern.ropes[whole[0] if whole else 0]

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.block.hidden

    @property
    def num_streams(self) -> int:
        """It has one residual stream."""
        return 1

    @property
    def usual_page_size(self) -> int:
        """Tokens per page unless the user sets another number."""
        return USUAL_PAGE

    @property
    def takes_embeds(self) -> bool:
        """Embeddings may stand in place of tokens."""
        return True

    @property
    def has_experts(self) -> bool:
        """Whether tokens choose the weights that they read (a mixture of experts)."""
        return isinstance(self.experts, ExpertsConfig)

    @property
    def has_axes(self) -> bool:
        """Whether rotary positions have three axes (mrope)."""
        return bool(self.rope.sections)

    @property
    def has_row_state(self) -> bool:
        """Whether rows have recurrent states outside of pages."""
        return bool(self.recurrence.layers)

    @property
    def plain_attention(self) -> AttentionConfig:
        """The attention of a model with only keys and values. Refuses other models."""
        if isinstance(self.attention, LatentConfig) or self.recurrence.layers:
            kind = "states" if self.recurrence.layers else "latents"
            raise ConfigError(
                f"this takes models that store keys and values, and {self.family.name} stores "
                f"{kind}; use a model with usual attention"
            )
        return self.attention

    def within(self, context: int | None) -> "ModelConfig":
        """The model for texts up to this length; None: up to its own limit."""
        if context is None:
            return self
        return replace(self, pattern=self.pattern.within(context))

    def check_like_llama(self, use: str) -> None:
        """Refuse layers that only the decoder computes, for other code that reads the weights."""
        pattern = self.pattern
        seen = min(*pattern.windows, *pattern.attention_chunks)
        is_mixed = seen < self.max_context or len(set(pattern.ropes)) > 1
        plain = Multipliers(attention=self.attention.width**-0.5)
        if is_mixed or self.family.style != LayerStyle() or self.multipliers != plain:
            raise ConfigError(
                f"{use} computes layers like those of a Llama, and layers of {self.family.name} "
                "differ in sliding windows, ropes, norms, activation or multipliers; use another "
                "model"
            )

    @property
    def attending(self) -> tuple[int, ...]:
        """Layers with attention. The other layers have a recurrent state per row."""
        layers = range(self.num_layers)
        return tuple(layer for layer in layers if layer not in self.recurrence.layers)

    @property
    def of_modules(self) -> "ModelConfig":
        """The config for layers of draft modules: all have experts, even if the first are dense."""
        family, experts = self.family.experts, self.experts
        if not isinstance(experts, ExpertsConfig) or not isinstance(family, ExpertFamily):
            return self
        if family.routing == "softmax":  # in these families the dense layers are not the first ones
            return self
        return replace(self, experts=replace(experts, layers=frozenset(range(self.num_layers))))

    def rule_at(self, layer: int) -> AttentionRule:
        """How one layer with keys and values scores them, and which it sees."""
        multipliers = self.multipliers
        return AttentionRule(
            scale=multipliers.attention,
            window=self.pattern.window_at(layer),
            attention_chunk=self.pattern.attention_chunk_at(layer),
            soft_cap=multipliers.score_cap,
        )

    def experts_at(self, layer: int) -> ExpertsConfig | NoExperts:
        """The experts of one layer."""
        experts = self.experts
        is_sparse = isinstance(experts, ExpertsConfig) and layer in experts.layers
        return experts if is_sparse else NoExperts()


def read_config(folder: Path) -> ModelConfig:
    """The decoder that a Hugging Face folder describes."""
    fields = read_fields(folder)
    try:
        return parse_config(fields)
    except ConfigError as error:
        raise ConfigError(f"{folder}: {error}") from error


def parse_config(fields: dict[str, Any]) -> ModelConfig:
    """The decoder that the fields of a config.json describe."""
    fields = text_fields(fields)
    family = family_of(architecture_of(fields), str(fields.get("model_type")))
    return parse_decoder(fields, family)


def parse_decoder(fields: dict[str, Any], family: Family) -> ModelConfig:
    """The decoder of a family that fields describe, whatever architecture they name."""
    fields = {**dict(family.usual_fields), **fields}
    family = _with_options(family, fields)
    _refuse_unsupported(fields, family)
    max_context = read_size(fields, "max_position_embeddings")
    num_layers = read_size(fields, "num_hidden_layers", most=MOST_LAYERS)
    attention = _latents(fields) if family.has_latents else _attention(fields)
    pattern = parse_pattern(fields, family, num_layers=num_layers, max_context=max_context)
    for rope in dict.fromkeys(pattern.ropes):
        check_pairs(rope, attention.rotary_dim)
    return ModelConfig(
        family=family,
        num_layers=num_layers,
        vocab_size=read_size(fields, "vocab_size"),
        max_context=max_context,
        is_tied=bool(fields.get("tie_word_embeddings", family.is_usually_tied))
        or not family.has_output_layer,
        block=BlockConfig(
            hidden=read_size(fields, "hidden_size"),
            intermediate=_dense_width(fields, family),
            norm_eps=_norm_eps(fields, family),
            code_group=parse_quantisation(quantisation_in(fields)).group,
        ),
        attention=attention,
        pattern=pattern,
        multipliers=parse_multipliers(
            fields, family, head_dim=attention.width, hidden=read_size(fields, "hidden_size")
        ),
        experts=_experts(fields, family, num_layers),
        recurrence=_recurrence(fields, family, num_layers),
    )


def text_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of the text model in a config.json that may describe other parts too."""
    return family_of(architecture_of(fields)).nesting.text_fields(fields)


def _norm_eps(fields: dict[str, Any], family: Family) -> float:
    if family.style.has_layer_norms:
        return read_real_or(fields, "layer_norm_eps", 1e-5)
    return read_real(fields, "rms_norm_eps")


def _dense_width(fields: dict[str, Any], family: Family) -> int:
    """The width of dense MLPs. A family whose layers all have experts may omit it."""
    experts = family.experts
    is_sparse = isinstance(experts, ExpertFamily) and not experts.may_be_dense and experts.shared
    name = experts.dense if isinstance(experts, ExpertFamily) else "intermediate_size"
    return read_size_or(fields, name, 0) if is_sparse else read_size(fields, name)


def _recurrence(
    fields: dict[str, Any], family: Family, num_layers: int
) -> Recurrence | NoRecurrence:
    if family.recurrent_projections == "none":
        return NO_RECURRENCE
    return parse_recurrence(fields, num_layers)


def _with_options(family: Family, fields: dict[str, Any]) -> Family:
    """The family with the options that its config.json chooses."""
    if family.style.has_plain_head_norm:
        style = replace(family.style, has_plain_head_norm=bool(fields.get("use_qk_norm", True)))
        return replace(family, style=style)
    if family.style.has_head_layer_norm:
        style = replace(family.style, has_head_layer_norm=bool(fields.get("use_qk_norm", False)))
        return replace(family, style=style)
    if not family.has_options:
        return family
    return replace(
        family,
        has_qkv_bias=bool(fields.get("attention_bias", False)),
        has_head_norm=bool(fields.get("use_qk_norm", False)),
    )


def _experts(fields: dict[str, Any], family: Family, num_layers: int) -> ExpertsConfig | NoExperts:
    if not isinstance(family.experts, ExpertFamily):
        return NoExperts()
    return parse_experts(fields, family.experts, num_layers=num_layers)


def architecture_of(fields: dict[str, Any]) -> str:
    """The single entry of `architectures`."""
    names = fields.get("architectures")
    if not isinstance(names, list) or len(names) != 1:
        raise ConfigError(f"config.json must name one architecture, got {names}; fix the field")
    return str(names[0])


def _refuse_unsupported(fields: dict[str, Any], family: Family) -> None:
    activations = _ACTIVATIONS[family.style.activation]
    only = {"hidden_act": activations, "hidden_activation": (*activations, None)}
    for key, allowed in (_UNSUPPORTED_UNLESS | only).items():
        if key == "attention_bias" and family.has_qkv_bias:
            continue  # some config files of such families set it, some do not
        if key == "use_qk_norm" and not (
            family.style.has_layer_norms and family.ropes.is_of_windows
        ):
            continue  # Command R and GLM read it; configs of heads copy it from there
        if key == "partial_rotary_factor" and family.reads_rotary_share:
            continue
        if key in fields and fields[key] not in allowed:
            raise ConfigError(
                f"config.json sets {key} to {fields[key]}, but only {allowed[0]} is supported; "
                "use another model"
            )


def _attention(fields: dict[str, Any]) -> AttentionConfig:
    heads = read_size(fields, "num_attention_heads")
    kv_heads = read_size_or(fields, "num_key_value_heads", heads)
    head_dim = read_size_or(fields, "head_dim", read_size(fields, "hidden_size") // heads)
    if heads % kv_heads or head_dim % 2:
        raise ConfigError(
            f"config.json has {heads} heads, {kv_heads} key-value heads and head_dim {head_dim}; "
            "heads must be a multiple of key-value heads and head_dim even"
        )
    return AttentionConfig(heads=heads, kv_heads=kv_heads, head_dim=head_dim)


def _latents(fields: dict[str, Any]) -> LatentConfig:
    config = LatentConfig(
        heads=read_size(fields, "num_attention_heads"),
        query_rank=read_size(fields, "q_lora_rank") if fields.get("q_lora_rank") else 0,
        latent=read_size(fields, "kv_lora_rank"),
        nope=read_size(fields, "qk_nope_head_dim"),
        rope=read_size(fields, "qk_rope_head_dim"),
        value=read_size(fields, "v_head_dim"),
    )
    if config.rope % 2:
        raise ConfigError(f"config.json has qk_rope_head_dim {config.rope}; it must be even")
    return config
