"""In what families of models differ from the plain Llama decoder, as data."""

from dataclasses import dataclass
from typing import Any, Literal

from outrider.models.mtp.module_tables import NO_MODULES, ModuleTable, NoModules
from outrider.models.text_model_fields import FLAT, Nesting


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertNames:
    """Names of a layer's experts where each expert has tensors of its own, or all share two."""

    block: str  # prefix of the router and of all experts
    stacked: str = "mlp"  # the same where experts share tensors
    gate: str
    up: str
    down: str
    router: str = "gate"
    shared: str = "mlp.shared_experts."  # experts that every token is routed to


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertFamily:
    """How a family spells its mixture of experts in config.json and among its tensors."""

    counts: tuple[str, ...]  # spellings of the number of experts, the usual one first
    intermediate: str  # the field with the width of an expert
    is_always_normed: bool = False  # weights of experts sum to one; else norm_topk_prob decides
    is_usually_normed: bool = False  # the value where norm_topk_prob is absent
    may_be_dense: bool = False  # fields say which layers have experts; else all do
    routing: Literal["softmax", "deepseek-v2", "deepseek-v3", "llama4"] = "softmax"
    dense: str = "intermediate_size"  # the field with the width of dense layers
    usual_scale: float = 1.0  # of weights, where routed_scaling_factor is absent
    usual_groups: tuple[int, int] = (
        1,
        1,
    )  # groups, and those selected, where n_group and topk_group are absent
    shared: str = ""  # the field with the width of a gated expert of every token, if any
    has_pairs: bool = False  # stored as gpt-oss does: see `paired_experts`
    # The axes of a tensor of all experts, besides experts; "either": its shape tells, and published
    # ones are "in, out".
    stacked_axes: Literal["out, in", "in, out", "either"] = "out, in"
    names: ExpertNames


@dataclass(frozen=True, slots=True)
class DenseFamily:
    """No layer of the family has experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NormNames:
    """Where a layer has norms, and how their tensors are called. Empty: there is none."""

    before_attention: str = "input_layernorm"
    after_attention: str = ""  # of the output, before it is added to the stream
    before_feed: str = "post_attention_layernorm"
    after_feed: str = ""

    @property
    def stored(self) -> tuple[str, ...]:
        names = (self.before_attention, self.after_attention, self.before_feed, self.after_feed)
        return tuple(name for name in names if name)


Activation = Literal["silu", "gelu"]  # gelu: its approximation by a hyperbolic tangent


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerStyle:
    """In what the layers of a family differ from those of a Llama, besides attention."""

    norms: NormNames = NormNames()
    feed: str = "mlp"  # prefix of the tensors of dense layers
    activation: Activation = "silu"
    has_plain_head_norm: bool = False  # heads are normalised without weights, in layers with rope
    has_joint_head_norm: bool = False  # queries and keys are normalised over all heads at once
    # Head by head a layer norm with weights of its own, if `use_qk_norm` says so
    has_head_layer_norm: bool = False
    has_fused_projections: bool = False  # stored: qkv_proj and gate_up_proj
    has_layer_norms: bool = False  # norms subtract the mean; their epsilon is `layer_norm_eps`
    has_norm_weights: bool = True  # False: norms of layers are not scaled
    is_parallel: bool = False  # attention and feed-forward read the same input
    has_sinks: bool = False  # a stored score per query head, which has no key
    has_output_bias: bool = False  # of attention


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowStyle:
    """Which layers have a sliding window where config.json has no `layer_types`."""

    is_read: bool = False  # `sliding_window` counts; transformers ignores it in other families
    usual: int | None = None  # the window where `sliding_window` is absent; None: there is none
    period: int = 0  # the last of every so many layers sees its whole text; 0: all have windows
    has_switch: bool = False  # `use_sliding_window` decides
    has_first: bool = False  # layers before `max_window_layers` see their whole text
    # The attention chunk of layers with rope where `attention_chunk_size` is absent; 0: none
    usual_chunk: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeStyle:
    """In what the rotary embeddings of single layers differ."""

    local_theta: float = 0.0  # of layers with windows, if they have a rope of their own; 0: no
    # Positions of images have three axes (mrope). Channels of an axis are neighbours, or those of
    # all axes alternate.
    axes: Literal["none", "neighbours", "alternating"] = "none"
    usual_sections: tuple[int, ...] = ()  # of the axes, where `mrope_section` is absent
    is_listed: bool = False  # `no_rope_layers` has 0 for layers without rope
    is_interleaved: bool = False  # rotated pairs are stored side by side
    is_of_windows: bool = False  # layers without sliding window have no rope
    usual_scaling: tuple[tuple[str, Any], ...] = ()  # where config.json has no rope fields
    may_be_partial: bool = False  # `partial_rotary_factor` counts; else heads rotate as a whole
    is_always_longrope: bool = False  # the only scaling, by any of its names
    other_settings: tuple[str, ...] = ()  # among the rope fields, of which no rope is made


# Which fields have multipliers
Scaling = Literal["none", "cohere", "gemma", "granite", "llama4", "ministral3", "olmo"]
RecurrentProjections = Literal["none", "fused", "apart"]  # tensors: Qwen3-Next two, Qwen3.5 four


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The differences of an architecture from the plain Llama decoder."""

    name: str
    has_qkv_bias: bool = False
    has_head_norm: bool = False  # queries and keys are normalised per head before rotation
    has_options: bool = False  # config.json decides about the bias and the head norm
    has_output_gate: bool = False  # every query head has a gate for its output
    has_zero_centred_norms: bool = False  # norms are stored as their distance from one
    has_latents: bool = False  # a token stores one vector for all heads
    is_usually_tied: bool = False  # where config.json does not say
    is_tied_unless_stored: bool = False  # an output layer in the folder counts, not the field
    style: LayerStyle = LayerStyle()
    windows: WindowStyle = WindowStyle()
    ropes: RopeStyle = RopeStyle()
    multipliers: Scaling = "none"
    usual_caps: tuple[float, float] = (0.0, 0.0)  # of scores and logits; 0: none
    theta: float = 10000.0  # the base frequency where config.json has none
    rotary_share: float = 1.0  # of a head that is rotated where config.json has no share
    recurrent_projections: RecurrentProjections = (
        "none"  # how recurrent layers store their projections
    )
    experts: ExpertFamily | DenseFamily = DenseFamily()
    modules: ModuleTable | NoModules = NO_MODULES  # draft modules inside the checkpoint
    # Values of fields that published files leave out, since the class in transformers has them
    usual_fields: tuple[tuple[str, Any], ...] = ()
    nesting: Nesting = FLAT  # prefixes of fields and tensors
    has_output_layer: bool = True  # False: the embedding is used for logits, too

    @property
    def reads_rotary_share(self) -> bool:
        """Whether config.json may say which share of a head is rotated."""
        return self.rotary_share != 1.0 or self.ropes.may_be_partial
