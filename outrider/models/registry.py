"""The supported architectures. All but DeepSeek-V4 share one decoder and differ by data only."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from outrider.errors import ConfigError
from outrider.models.mtp.module_tables import (
    DEEPSEEK,
    GLM4_MOE,
    MIMO,
    NO_MODULES,
    QWEN3_NEXT,
    WITHOUT_BODY,
    ModuleTable,
    NoModules,
)
from outrider.models.text_model_fields import FLAT, Nesting


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertNames:
    """Names of a layer's experts where each expert has tensors of its own."""

    block: str  # prefix of the router and of all experts
    gate: str
    up: str
    down: str
    shared: str = "mlp.shared_experts."  # experts that every token is routed to


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertFamily:
    """How a family spells its mixture of experts in config.json and among its tensors."""

    counts: tuple[str, ...]  # spellings of the number of experts, the usual one first
    intermediate: str  # the field with the width of an expert
    is_always_normed: bool = False  # weights of experts sum to one; else norm_topk_prob decides
    is_usually_normed: bool = False  # the value where norm_topk_prob is absent
    may_be_dense: bool = False  # fields say which layers have experts; else all do
    routing: Literal["softmax", "deepseek-v2", "deepseek-v3"] = "softmax"
    usual_scale: float = 1.0  # of weights, where routed_scaling_factor is absent
    usual_groups: tuple[int, int] = (
        1,
        1,
    )  # groups, and those selected, where n_group and topk_group are absent
    shared: str = ""  # the field with the width of a gated expert of every token, if any
    has_pairs: bool = False  # stored as gpt-oss does: see `paired_experts`
    block: int = 0  # channels that share a scale in published files: ranks do not part them
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
    activation: Activation = "silu"
    has_joint_head_norm: bool = False  # queries and keys are normalised over all heads at once
    has_fused_projections: bool = False  # stored: qkv_proj and gate_up_proj
    has_layer_norms: bool = False  # norms subtract the mean; their epsilon is `layer_norm_eps`
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeStyle:
    """In what the rotary embeddings of single layers differ."""

    local_theta: float = 0.0  # of layers with windows, if they have a rope of their own; 0: no
    has_axes: bool = False  # positions of images have three axes (mrope)
    is_listed: bool = False  # `no_rope_layers` has 0 for layers without rope
    is_interleaved: bool = False  # rotated pairs are stored side by side
    is_of_windows: bool = False  # layers without sliding window have no rope
    usual_scaling: tuple[tuple[str, Any], ...] = ()  # where config.json has no rope fields


Scaling = Literal["none", "cohere", "gemma", "granite"]  # which fields have multipliers
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
    style: LayerStyle = LayerStyle()
    windows: WindowStyle = WindowStyle()
    ropes: RopeStyle = RopeStyle()
    multipliers: Scaling = "none"
    usual_caps: tuple[float, float] = (0.0, 0.0)  # of scores and logits; 0: none
    theta: float = 10000.0  # the base frequency where config.json has none
    rotary_share: float = 1.0  # of a head that is rotated where config.json has no share; 1: always
    recurrent_projections: RecurrentProjections = (
        "none"  # how recurrent layers store their projections
    )
    experts: ExpertFamily | DenseFamily = DenseFamily()
    modules: ModuleTable | NoModules = NO_MODULES  # draft modules inside the checkpoint
    nesting: Nesting = FLAT  # prefixes of fields and tensors
    reads_images: bool = False  # the folder's vision tower is loaded, too
    has_output_layer: bool = True  # False: the embedding is used for logits, too


# Mistral-7B-v0.1 has this window. Later models write `"sliding_window": null`. A file without the
# field means the default of the class, as everywhere else: 4096 in transformers since v0.1.
_MISTRAL_WINDOWS = WindowStyle(is_read=True, usual=4096)
_QWEN_WINDOWS = WindowStyle(is_read=True, usual=4096, has_switch=True, has_first=True)
_ALL_WINDOWS = WindowStyle(is_read=True)

_GEMMA2 = Family(
    name="gemma2",
    has_zero_centred_norms=True,
    is_usually_tied=True,
    style=LayerStyle(
        norms=NormNames(
            after_attention="post_attention_layernorm",
            before_feed="pre_feedforward_layernorm",
            after_feed="post_feedforward_layernorm",
        ),
        activation="gelu",
    ),
    windows=WindowStyle(is_read=True, usual=4096, period=2),
    multipliers="gemma",
    usual_caps=(50.0, 30.0),
)
_GEMMA3 = replace(
    _GEMMA2,
    name="gemma3",
    has_head_norm=True,
    windows=WindowStyle(is_read=True, usual=4096, period=6),
    ropes=RopeStyle(local_theta=10000.0),
    theta=1e6,
    usual_caps=(0.0, 0.0),
)
_OLMO2 = Family(
    name="olmo2",
    style=LayerStyle(
        norms=NormNames(
            before_attention="",
            after_attention="post_attention_layernorm",
            before_feed="",
            after_feed="post_feedforward_layernorm",
        ),
        has_joint_head_norm=True,
    ),
)
_OLMO3 = replace(
    _OLMO2,
    name="olmo3",
    windows=WindowStyle(is_read=True, usual=4096, period=4),
    ropes=RopeStyle(local_theta=500000.0),
    theta=500000.0,
)

_MIXTRAL = ExpertFamily(
    counts=("num_local_experts",),
    intermediate="intermediate_size",
    is_always_normed=True,
    names=ExpertNames(block="block_sparse_moe", gate="w1", up="w3", down="w2"),
)
_QWEN3_MOE = ExpertFamily(
    counts=("num_experts", "num_local_experts"),
    intermediate="moe_intermediate_size",
    may_be_dense=True,
    names=ExpertNames(block="mlp", gate="gate_proj", up="up_proj", down="down_proj"),
)
_QWEN3_NEXT = ExpertFamily(
    counts=("num_experts",),
    intermediate="moe_intermediate_size",
    is_usually_normed=True,
    may_be_dense=True,
    shared="shared_expert_intermediate_size",
    names=replace(_QWEN3_MOE.names, shared="mlp.shared_expert."),
)
_DEEPSEEK = ExpertNames(block="mlp", gate="gate_proj", up="up_proj", down="down_proj")
_DEEPSEEK_V2 = ExpertFamily(
    counts=("n_routed_experts",),
    intermediate="moe_intermediate_size",
    routing="deepseek-v2",
    names=_DEEPSEEK,
)
_DEEPSEEK_V3 = ExpertFamily(
    counts=("n_routed_experts",),
    intermediate="moe_intermediate_size",
    routing="deepseek-v3",
    usual_scale=2.5,
    usual_groups=(8, 4),
    names=_DEEPSEEK,
)
_COHERE2 = Family(
    name="cohere2",
    is_usually_tied=True,
    style=LayerStyle(norms=NormNames(before_feed=""), has_layer_norms=True, is_parallel=True),
    windows=WindowStyle(is_read=True, usual=4096, period=4),
    ropes=RopeStyle(is_interleaved=True, is_of_windows=True),
    multipliers="cohere",
)
_COHERE = replace(
    _COHERE2,
    name="cohere",
    windows=WindowStyle(),
    ropes=RopeStyle(is_interleaved=True),
    theta=500000.0,
)
_GPT_OSS = Family(
    name="gpt-oss",
    has_qkv_bias=True,
    style=LayerStyle(has_sinks=True, has_output_bias=True),
    windows=WindowStyle(is_read=True, usual=128, period=2),
    ropes=RopeStyle(
        usual_scaling=(
            ("rope_type", "yarn"),
            ("factor", 32.0),
            ("truncate", False),
            ("original_max_position_embeddings", 4096),
        )
    ),
    theta=150000.0,
    experts=ExpertFamily(
        counts=("num_local_experts",),
        intermediate="intermediate_size",
        is_always_normed=True,
        has_pairs=True,
        block=32,
        names=_DEEPSEEK,
    ),
)
_GLM4_MOE = replace(_DEEPSEEK_V3, usual_scale=1.0, usual_groups=(1, 1))

_RECURRENT_QWEN = Family(
    name="qwen3-next",
    has_head_norm=True,
    has_output_gate=True,
    has_zero_centred_norms=True,
    windows=_QWEN_WINDOWS,
    rotary_share=0.25,
    recurrent_projections="fused",
    modules=QWEN3_NEXT,
)
_QWEN3_5 = replace(_RECURRENT_QWEN, name="qwen3.5", recurrent_projections="apart")
_QWEN3_5_MOE = replace(
    _QWEN3_5,
    name="qwen3.5-moe",
    experts=replace(_QWEN3_NEXT, is_always_normed=True, may_be_dense=False),
)
# Folders with an image encoder. transformers keeps these names when it saves the text model alone.
_WITH_PICTURES = Nesting(
    fields="text_config",
    ours="model.",
    stored="model.language_model.",
    others=("model.visual.",),
)
_IDEFICS3 = Family(
    name="idefics3",
    reads_images=True,
    nesting=Nesting(
        fields="text_config",
        ours="model.",
        stored="model.text_model.",
        others=("model.vision_model.", "model.connector."),
    ),
)
_QWEN2_5_VL = Family(
    name="qwen2.5-vl",
    has_qkv_bias=True,
    reads_images=True,
    windows=_QWEN_WINDOWS,
    ropes=RopeStyle(has_axes=True),
    theta=1e6,
    # Published folders have neither an object of the text model nor a prefix of its tensors.
    nesting=replace(_WITH_PICTURES, others=("model.visual.", "visual."), is_optional=True),
)
_OUT_OF_PICTURES = replace(_WITH_PICTURES, fields="", others=(), is_optional=True)

FAMILIES = {
    "CohereForCausalLM": _COHERE,
    "Cohere2ForCausalLM": _COHERE2,
    "DeepseekV2ForCausalLM": Family(name="deepseek-v2", has_latents=True, experts=_DEEPSEEK_V2),
    "DeepseekV3ForCausalLM": Family(
        name="deepseek-v3", has_latents=True, experts=_DEEPSEEK_V3, modules=DEEPSEEK
    ),
    "Glm4MoeForCausalLM": Family(
        name="glm4-moe",
        has_options=True,
        rotary_share=0.5,
        experts=_GLM4_MOE,
        modules=GLM4_MOE,
    ),
    "Gemma2ForCausalLM": _GEMMA2,
    "Gemma3ForCausalLM": _GEMMA3,
    "GptOssForCausalLM": _GPT_OSS,
    "GraniteForCausalLM": Family(name="granite", multipliers="granite"),
    "Idefics3ForConditionalGeneration": _IDEFICS3,
    "LlamaForCausalLM": Family(name="llama"),
    "MinistralForCausalLM": Family(name="ministral", windows=_MISTRAL_WINDOWS),
    "MistralForCausalLM": Family(name="mistral", windows=_MISTRAL_WINDOWS),
    "MiMoForCausalLM": Family(name="mimo", has_qkv_bias=True, windows=_QWEN_WINDOWS, modules=MIMO),
    "MixtralForCausalLM": Family(name="mixtral", theta=1e6, windows=_ALL_WINDOWS, experts=_MIXTRAL),
    "Olmo2ForCausalLM": _OLMO2,
    "Olmo3ForCausalLM": _OLMO3,
    "Phi3ForCausalLM": Family(
        name="phi3", style=LayerStyle(has_fused_projections=True), windows=_ALL_WINDOWS
    ),
    "Qwen2ForCausalLM": Family(name="qwen2", has_qkv_bias=True, windows=_QWEN_WINDOWS),
    "Qwen2_5_VLForConditionalGeneration": _QWEN2_5_VL,
    "Qwen3ForCausalLM": Family(name="qwen3", has_head_norm=True, windows=_QWEN_WINDOWS),
    "Qwen3MoeForCausalLM": Family(
        name="qwen3-moe",
        has_head_norm=True,
        windows=replace(_QWEN_WINDOWS, has_first=False),
        experts=_QWEN3_MOE,
    ),
    "Qwen3NextForCausalLM": replace(_RECURRENT_QWEN, experts=_QWEN3_NEXT),
    "Qwen3_5ForCausalLM": replace(_QWEN3_5, nesting=_OUT_OF_PICTURES),
    "Qwen3_5ForConditionalGeneration": replace(_QWEN3_5, nesting=_WITH_PICTURES),
    "Qwen3_5MoeForCausalLM": replace(_QWEN3_5_MOE, nesting=_OUT_OF_PICTURES),
    "Qwen3_5MoeForConditionalGeneration": replace(_QWEN3_5_MOE, nesting=_WITH_PICTURES),
    "SmolVLMForConditionalGeneration": replace(_IDEFICS3, name="smolvlm"),
    "SmolLM3ForCausalLM": Family(
        name="smollm3",
        is_usually_tied=True,
        windows=WindowStyle(is_read=True, has_switch=True),
        ropes=RopeStyle(is_listed=True),
        theta=2e6,
    ),
}
DEEPSEEK_V4 = "DeepseekV4ForCausalLM"


def family_of(architecture: str) -> Family:
    """The family a config.json names in `architectures`."""
    if architecture in WITHOUT_BODY:
        raise ConfigError(
            f"the body of {architecture} is not supported yet, only its draft modules "
            f"({WITHOUT_BODY[architecture].stored_as}); use one of {', '.join(FAMILIES)}"
        )
    if architecture == DEEPSEEK_V4:
        usual = [
            name for name, family in FAMILIES.items() if family.recurrent_projections == "none"
        ]
        raise ConfigError(
            f"{architecture} is supported as a target alone: its decoder is its own, and neither "
            f"drafts, scores texts nor takes heads; use one of {', '.join(usual)}"
        )
    whole = architecture.removesuffix("Model") + "ForCausalLM"
    if architecture.endswith("Model") and whole in FAMILIES:  # transformers' name of the body alone
        return replace(FAMILIES[whole], has_output_layer=False)
    if architecture not in FAMILIES:
        names = ", ".join((*FAMILIES, DEEPSEEK_V4))
        raise ConfigError(f"the architecture {architecture} is not supported; use one of {names}")
    return FAMILIES[architecture]
