"""What config.json says about a decoder. Strict: what is not understood is refused by name."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outrider.config.settings import USUAL_PAGE
from outrider.errors import ConfigError
from outrider.models.config_fields import read_fields, read_list, read_real, read_size, read_size_or
from outrider.models.expert_config import ExpertsConfig, NoExperts, parse_experts
from outrider.models.recurrent.recurrence import NO_RECURRENCE, NoRecurrence, Recurrence
from outrider.models.recurrent.recurrent_config import parse_recurrence
from outrider.models.registry import ExpertFamily, Family, family_of
from outrider.models.rope_scaling import RopeScaling, parse_scaling, rope_settings

# Settings that would change the computation, and the only values the decoder computes.
_UNSUPPORTED_UNLESS: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "use_sliding_window": (False,),
    "partial_rotary_factor": (1.0,),
}
FP8_BLOCKS = (
    "the weights are stored as blocks of fp8, which are not read yet; convert the folder to "
    "bfloat16 first (DeepSeek's own inference/fp8_cast_bf16.py does) and remove "
    "quantization_config from its config.json, or use a bfloat16 copy of the model"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockConfig:
    """Widths of the residual stream and of the feed-forward part."""

    hidden: int
    intermediate: int
    norm_eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """Heads; `kv_heads` of them are stored, and each serves an equal group of query heads."""

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def vectors(self) -> int:
        """What a token stores: a key and a value for every stored head."""
        return 2 * self.kv_heads

    @property
    def width(self) -> int:
        """Of such a vector."""
        return self.head_dim

    @property
    def rotary_dim(self) -> int:
        return self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentConfig:
    """Heads that all read one stored vector per token: a latent, and a key that is rotated.

    A query has `nope` lanes for the latent's key, `rope` lanes for the other, and a value `value`.
    """

    heads: int
    query_rank: int  # queries are made of so few lanes; 0: of the state itself
    latent: int
    nope: int
    rope: int
    value: int

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
class RopeConfig:
    """Rotary position embedding."""

    theta: float
    scaling: RopeScaling
    is_interleaved: bool = False  # as stored: a pair's lanes are neighbours, not half a head apart
    share: float = 1.0  # of a head's lanes that are rotated: the first ones

    def num_rotated(self, head_dim: int) -> int:
        """Lanes of a head that are rotated."""
        return int(head_dim * self.share)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Everything the decoder is built from, besides its weights."""

    family: Family
    num_layers: int
    vocab_size: int
    max_context: int  # tokens, prompt and output together
    is_tied: bool  # the head is the embedding
    block: BlockConfig
    attention: AnyAttention
    rope: RopeConfig
    experts: ExpertsConfig | NoExperts
    recurrence: Recurrence | NoRecurrence = NO_RECURRENCE

    @property
    def usual_page_size(self) -> int:
        """Tokens per page unless the user sets another number."""
        return USUAL_PAGE

    @property
    def has_row_state(self) -> bool:
        """Whether rows keep recurrent states outside of pages."""
        return bool(self.recurrence.layers)

    @property
    def plain_attention(self) -> AttentionConfig:
        """For what only knows keys and values: refused where some layer stores anything else."""
        if isinstance(self.attention, LatentConfig) or self.recurrence.layers:
            kind = "states" if self.recurrence.layers else "latents"
            raise ConfigError(
                f"this takes models that store keys and values, and {self.family.name} stores "
                f"{kind}; use a model with usual attention"
            )
        return self.attention

    @property
    def attending(self) -> tuple[int, ...]:
        """The layers that attend; the others keep a state per row."""
        layers = range(self.num_layers)
        return tuple(layer for layer in layers if layer not in self.recurrence.layers)

    @property
    def of_modules(self) -> "ModelConfig":
        """The same, but for blocks of draft modules: behind dense layers, they all have experts."""
        family, experts = self.family.experts, self.experts
        if not isinstance(experts, ExpertsConfig) or not isinstance(family, ExpertFamily):
            return self
        if family.routing == "softmax":  # which layers are dense does not follow from their order
            return self
        return replace(self, experts=replace(experts, layers=frozenset(range(self.num_layers))))

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
    family = _with_options(family_of(architecture_of(fields)), fields)
    _refuse_unsupported(fields, family)
    max_context = read_size(fields, "max_position_embeddings")
    num_layers = read_size(fields, "num_hidden_layers")
    attention = _latents(fields) if family.has_latents else _attention(fields)
    return ModelConfig(
        family=family,
        num_layers=num_layers,
        vocab_size=read_size(fields, "vocab_size"),
        max_context=max_context,
        is_tied=bool(fields.get("tie_word_embeddings", False)),
        block=BlockConfig(
            hidden=read_size(fields, "hidden_size"),
            intermediate=_dense_width(fields, family),
            norm_eps=read_real(fields, "rms_norm_eps"),
        ),
        attention=attention,
        rope=_in_pairs(_rope(fields, max_context, family), attention.rotary_dim),
        experts=_experts(fields, family, num_layers),
        recurrence=_recurrence(fields, family, num_layers),
    )


def text_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of the text model, which other parts may stand beside."""
    return family_of(architecture_of(fields)).nesting.text_fields(fields)


def _dense_width(fields: dict[str, Any], family: Family) -> int:
    """The width of dense parts; a family whose layers all have experts need not say it."""
    experts = family.experts
    is_sparse = isinstance(experts, ExpertFamily) and not experts.may_be_dense and experts.shared
    return (
        read_size_or(fields, "intermediate_size", 0)
        if is_sparse
        else read_size(fields, "intermediate_size")
    )


def _recurrence(
    fields: dict[str, Any], family: Family, num_layers: int
) -> Recurrence | NoRecurrence:
    if family.recurrent_projections == "none":
        return NO_RECURRENCE
    return parse_recurrence(fields, num_layers)


def _with_options(family: Family, fields: dict[str, Any]) -> Family:
    """The family as this config.json has it, where it leaves a choice."""
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
    """The one architecture that a config.json names."""
    names = fields.get("architectures")
    if not isinstance(names, list) or len(names) != 1:
        raise ConfigError(f"config.json must name one architecture, got {names}; fix the field")
    return str(names[0])


def refuse_quantised(fields: Mapping[str, Any]) -> None:
    """Refuse weights in a form that is not read, with what to do about that form."""
    quantised = fields.get("quantization_config")
    if quantised is None:
        return
    method = quantised.get("quant_method") if isinstance(quantised, dict) else None
    if method == "fp8":
        raise ConfigError(FP8_BLOCKS)
    raise ConfigError(
        "config.json has a quantization_config, and weights quantised by "
        f"{method or 'an unnamed method'} are not read; use a bfloat16 copy of the model"
    )


def _refuse_unsupported(fields: dict[str, Any], family: Family) -> None:
    refuse_quantised(fields)
    for key, allowed in _UNSUPPORTED_UNLESS.items():
        if key == "attention_bias" and family.has_qkv_bias:
            continue  # some files of such families say it, some do not
        if key == "partial_rotary_factor" and family.rotary_share != 1.0:
            continue
        if key in fields and fields[key] not in allowed:
            raise ConfigError(
                f"config.json sets {key} to {fields[key]}, but only {allowed[0]} is supported; "
                "use another model"
            )
    # Qwen keeps a window size in its files and says apart whether it is used.
    has_window = fields.get("sliding_window") is not None and "use_sliding_window" not in fields
    if has_window or "sliding_attention" in read_list(fields, "layer_types"):
        raise ConfigError(
            f"config.json sets sliding_window to {fields.get('sliding_window')}, which is not "
            "supported; use a model with full attention"
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


def _rope(fields: dict[str, Any], max_context: int, family: Family) -> RopeConfig:
    """Read either form: `rope_parameters`, or the older `rope_theta` beside `rope_scaling`."""
    rope = rope_settings(fields)
    if "rope_theta" in fields and rope.get("rope_theta") is None:  # what stands inside counts
        rope["rope_theta"] = fields["rope_theta"]
    theta = read_real(rope, "rope_theta") if "rope_theta" in rope else family.theta
    rope.pop("rope_theta", None)
    if (
        family.recurrent_projections != "none"
    ):  # where pictures lie among text; in text all are alike
        rope = {key: value for key, value in rope.items() if not key.startswith("mrope_")}
    if "mscale" in rope and not family.has_latents:
        raise ConfigError(
            f"rope scaling with mscale is not supported for {family.name}; set the "
            "attention_factor that it stands for, or use another model"
        )
    share = _share(rope.pop("partial_rotary_factor", None), fields, family)
    if share != 1.0 and rope.get("rope_type", rope.get("type", "default")) != "default":
        raise ConfigError(
            "rope scaling of partly rotated heads is not supported; remove rope_scaling, or set "
            "the rope_type in rope_parameters to default"
        )
    return RopeConfig(
        theta=theta,
        share=share,
        scaling=parse_scaling(rope, max_context),
        is_interleaved=family.has_latents and bool(fields.get("rope_interleave", True)),
    )


def _in_pairs(rope: RopeConfig, head_dim: int) -> RopeConfig:
    """The same, where the rotated lanes of a head can be turned two by two."""
    rotated = rope.num_rotated(head_dim)
    if rotated < 2 or rotated % 2:
        raise ConfigError(
            f"config.json rotates {rotated} of the {head_dim} lanes of a head, and lanes turn in "
            f"pairs; set partial_rotary_factor so that {head_dim} times it is an even number"
        )
    return rope


def _share(stored: object, fields: dict[str, Any], family: Family) -> float:
    """How much of a head is rotated; either form of the field, or the usual where it is silent.

    Other families rotate all of it; `_refuse_unsupported` has seen the older form of the field.
    """
    if family.rotary_share == 1.0:
        if stored not in (None, 1.0):
            raise ConfigError(
                f"config.json sets partial_rotary_factor to {stored} in rope_parameters, but only "
                f"1.0 is supported for {family.name}; use another model"
            )
        return 1.0
    usual = fields.get("partial_rotary_factor", family.rotary_share)
    asked = usual if stored is None else stored
    share = read_real({"partial_rotary_factor": asked}, "partial_rotary_factor")
    if share > 1.0:
        raise ConfigError(f"config.json rotates {share} of every head; fix partial_rotary_factor")
    return share
