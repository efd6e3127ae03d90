"""The supported architectures. All but DeepSeek-V4 share one decoder and differ by data only."""

from dataclasses import dataclass, replace
from typing import Literal

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
    names: ExpertNames


@dataclass(frozen=True, slots=True)
class DenseFamily:
    """No layer of the family has experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowStyle:
    """Which layers have a sliding window where config.json has no `layer_types`."""

    usual: int | None = None  # the window where `sliding_window` is absent; None: there is none
    period: int = 0  # the last of every so many layers sees its whole text; 0: all have windows
    has_switch: bool = False  # `use_sliding_window` decides, for layers from `max_window_layers` on


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
    windows: WindowStyle = WindowStyle()
    theta: float = 10000.0  # the base frequency where config.json has none
    rotary_share: float = 1.0  # of a head that is rotated where config.json has no share; 1: always
    recurrent_projections: RecurrentProjections = (
        "none"  # how recurrent layers store their projections
    )
    experts: ExpertFamily | DenseFamily = DenseFamily()
    modules: ModuleTable | NoModules = NO_MODULES  # draft modules inside the checkpoint
    nesting: Nesting = FLAT  # prefixes of fields and tensors
    has_output_layer: bool = True  # False: the embedding is used for logits, too


# Mistral-7B-v0.1 has this window. Later models write `"sliding_window": null`. A file without the
# field means the default of the class, as everywhere else: 4096 in transformers since v0.1.
_MISTRAL_WINDOWS = WindowStyle(usual=4096)
_QWEN_WINDOWS = WindowStyle(usual=4096, has_switch=True)

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
_OUT_OF_PICTURES = replace(_WITH_PICTURES, fields="", others=(), is_optional=True)

FAMILIES = {
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
    "LlamaForCausalLM": Family(name="llama"),
    "MinistralForCausalLM": Family(name="ministral", windows=_MISTRAL_WINDOWS),
    "MistralForCausalLM": Family(name="mistral", windows=_MISTRAL_WINDOWS),
    "MiMoForCausalLM": Family(name="mimo", has_qkv_bias=True, windows=_QWEN_WINDOWS, modules=MIMO),
    "MixtralForCausalLM": Family(name="mixtral", theta=1e6, experts=_MIXTRAL),
    "Qwen2ForCausalLM": Family(name="qwen2", has_qkv_bias=True, windows=_QWEN_WINDOWS),
    "Qwen3ForCausalLM": Family(name="qwen3", has_head_norm=True, windows=_QWEN_WINDOWS),
    "Qwen3MoeForCausalLM": Family(
        name="qwen3-moe", has_head_norm=True, windows=_QWEN_WINDOWS, experts=_QWEN3_MOE
    ),
    "Qwen3NextForCausalLM": replace(_RECURRENT_QWEN, experts=_QWEN3_NEXT),
    "Qwen3_5ForCausalLM": replace(_QWEN3_5, nesting=_OUT_OF_PICTURES),
    "Qwen3_5ForConditionalGeneration": replace(_QWEN3_5, nesting=_WITH_PICTURES),
    "Qwen3_5MoeForCausalLM": replace(_QWEN3_5_MOE, nesting=_OUT_OF_PICTURES),
    "Qwen3_5MoeForConditionalGeneration": replace(_QWEN3_5_MOE, nesting=_WITH_PICTURES),
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
