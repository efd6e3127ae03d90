"""The supported architectures. All but DeepSeek-V4 share one decoder and differ by data only."""

from dataclasses import replace
from typing import Any

from outrider.errors import ConfigError
from outrider.models.family import (
    ExpertFamily,
    ExpertNames,
    Family,
    LayerStyle,
    NormNames,
    RopeStyle,
    WindowStyle,
)
from outrider.models.mtp.module_tables import DEEPSEEK, GLM4_MOE, MIMO, QWEN3_NEXT, WITHOUT_BODY
from outrider.models.multipliers import GROWTH_FIELD
from outrider.models.text_model_fields import Nesting

# Mistral-7B-v0.1 has this window. Later models write `"sliding_window": null`. A file without the
# field means the default of the class, as everywhere else: 4096 in transformers since v0.1.
_MISTRAL_WINDOWS = WindowStyle(is_read=True, usual=4096)
_QWEN_WINDOWS = WindowStyle(is_read=True, usual=4096, has_switch=True, has_first=True)
_ALL_WINDOWS = WindowStyle(is_read=True)
_MISTRAL = Family(name="mistral", windows=_MISTRAL_WINDOWS)

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
    usual_fields=(
        ("vocab_size", 262208),
        ("num_attention_heads", 8),
        ("num_key_value_heads", 4),
        ("head_dim", 256),
        ("max_position_embeddings", 131072),
        ("rms_norm_eps", 1e-6),
    ),
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
    style=replace(_COHERE2.style, has_head_layer_norm=True),
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
        names=_DEEPSEEK,
    ),
)
_LLAMA4 = Family(
    name="llama4",
    style=LayerStyle(feed="feed_forward", has_plain_head_norm=True),
    windows=WindowStyle(usual_chunk=8192),
    ropes=RopeStyle(is_listed=True, is_interleaved=True),
    theta=500000.0,
    multipliers="llama4",
    experts=ExpertFamily(
        counts=("num_local_experts",),
        intermediate="intermediate_size",
        dense="intermediate_size_mlp",
        routing="llama4",
        stacked_axes="in, out",
        names=ExpertNames(
            block="feed_forward",
            stacked="feed_forward",
            router="router",
            shared="feed_forward.shared_expert.",
            gate="gate_proj",
            up="up_proj",
            down="down_proj",
        ),
    ),
)
_MINISTRAL3 = Family(
    name="ministral3",
    windows=_ALL_WINDOWS,
    ropes=RopeStyle(
        other_settings=(GROWTH_FIELD, "max_position_embeddings"),
        usual_scaling=(
            ("rope_type", "yarn"),
            ("factor", 16.0),
            ("original_max_position_embeddings", 16384),
            ("mscale", 1.0),
            ("mscale_all_dim", 1.0),
            (GROWTH_FIELD, 0.1),
        ),
    ),
    theta=1e6,
    multipliers="ministral3",
)
_BESIDE_TOWER = Nesting(
    fields="text_config",
    stored="language_model.",
    others=("vision_tower.", "multi_modal_projector."),
)
_MISTRAL3 = "Mistral3ForConditionalGeneration"
_BESIDE_PIXTRAL: dict[str, Any] = {
    "nesting": _BESIDE_TOWER,
    "is_tied_unless_stored": True,  # Mistral-Small-3 does not have the field, which means tied
}
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
    windows=_QWEN_WINDOWS,
    ropes=RopeStyle(axes="neighbours"),
    theta=1e6,
    # Published folders have neither an object of the text model nor a prefix of its tensors.
    nesting=replace(_WITH_PICTURES, others=("model.visual.", "visual."), is_optional=True),
)
_QWEN3_VL = Family(
    name="qwen3-vl",
    has_head_norm=True,
    ropes=RopeStyle(axes="alternating", usual_sections=(24, 20, 20)),
    theta=500000.0,
    nesting=_WITH_PICTURES,
)
_QWEN3_5_AXES = RopeStyle(axes="alternating", usual_sections=(11, 11, 10))
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
    "Gemma3ForConditionalGeneration": replace(_GEMMA3, nesting=_BESIDE_TOWER),
    "GptOssForCausalLM": _GPT_OSS,
    "GraniteForCausalLM": Family(name="granite", multipliers="granite"),
    "Idefics3ForConditionalGeneration": _IDEFICS3,
    "LlamaForCausalLM": Family(name="llama"),
    "Llama4ForCausalLM": _LLAMA4,
    "Llama4ForConditionalGeneration": replace(
        _LLAMA4,
        nesting=Nesting(
            fields="text_config",
            stored="language_model.",
            others=("vision_model.", "multi_modal_projector."),
        ),
    ),
    "MinistralForCausalLM": Family(name="ministral", windows=_MISTRAL_WINDOWS),
    "MistralForCausalLM": _MISTRAL,
    "Ministral3ForCausalLM": _MINISTRAL3,
    _MISTRAL3: replace(_MISTRAL, **_BESIDE_PIXTRAL),
    "MiMoForCausalLM": Family(name="mimo", has_qkv_bias=True, windows=_QWEN_WINDOWS, modules=MIMO),
    "MixtralForCausalLM": Family(name="mixtral", theta=1e6, windows=_ALL_WINDOWS, experts=_MIXTRAL),
    "OlmoForCausalLM": Family(
        name="olmo",
        style=LayerStyle(has_layer_norms=True, has_norm_weights=False),
        multipliers="olmo",
    ),
    "Olmo2ForCausalLM": _OLMO2,
    "Olmo3ForCausalLM": _OLMO3,
    "Phi3ForCausalLM": Family(
        name="phi3",
        style=LayerStyle(has_fused_projections=True),
        windows=_ALL_WINDOWS,
        ropes=RopeStyle(may_be_partial=True, is_always_longrope=True),
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
    "Qwen3VLForConditionalGeneration": _QWEN3_VL,
    "Qwen3VLMoeForConditionalGeneration": replace(
        _QWEN3_VL,
        name="qwen3-vl-moe",
        experts=replace(_QWEN3_MOE, stacked_axes="either", is_always_normed=True),
    ),
    "Qwen3_5ForCausalLM": replace(_QWEN3_5, nesting=_OUT_OF_PICTURES),
    "Qwen3_5ForConditionalGeneration": replace(
        _QWEN3_5, nesting=_WITH_PICTURES, ropes=_QWEN3_5_AXES
    ),
    "Qwen3_5MoeForCausalLM": replace(_QWEN3_5_MOE, nesting=_OUT_OF_PICTURES),
    "Qwen3_5MoeForConditionalGeneration": replace(
        _QWEN3_5_MOE, nesting=_WITH_PICTURES, ropes=_QWEN3_5_AXES
    ),
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
# Their layers add a learned indexer to latents, with keys of its own. Texts of more than index_topk
# tokens would be other texts without it.
_WITH_INDEXER = ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM")
# By the `model_type` of the text model, where an architecture has several: Mistral-Small-3 and
# Ministral-3 have the same name.
_BY_TEXT_TYPE = {(_MISTRAL3, "ministral3"): replace(_MINISTRAL3, **_BESIDE_PIXTRAL)}


def family_of(architecture: str, text_type: str = "") -> Family:
    """The family a config.json names in `architectures`, and in the type of its text model."""
    if (architecture, text_type) in _BY_TEXT_TYPE:
        return _BY_TEXT_TYPE[architecture, text_type]
    if architecture in WITHOUT_BODY:
        raise ConfigError(
            f"the body of {architecture} is not supported yet, only its draft modules "
            f"({WITHOUT_BODY[architecture].stored_as}); use one of {', '.join(FAMILIES)}"
        )
    if architecture in _WITH_INDEXER:
        raise ConfigError(
            f"{architecture} is not supported: its indexer selects the keys that a query reads "
            "(sparse attention), and latents are read whole here; use DeepseekV3ForCausalLM (V3, "
            f"V3.1, R1) or {DEEPSEEK_V4}"
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
