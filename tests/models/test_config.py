import json

import pytest

from outrider.errors import ConfigError
from outrider.models.model_config import parse_config, read_config
from outrider.models.rope_config import NO_ROPE, RopeConfig
from outrider.models.rope_scaling import LinearScaling, Llama3Scaling, NoScaling, YarnScaling
from outrider.ops.attention.attention_rule import WHOLE_TEXT

FIELDS = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "vocab_size": 50,
}
ORIGINAL = "original_max_position_embeddings"
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def parsed(**changes):
    return parse_config(FIELDS | changes)


def test_absent_fields_take_the_defaults_of_the_format():
    config = parsed()
    assert config.attention.kv_heads == 4
    assert config.attention.head_dim == 16
    assert config.rope.theta == 10000.0
    assert config.rope.scaling == NoScaling()
    assert not config.is_tied


MISTRAL = {"architectures": ["MistralForCausalLM"]}
QWEN = {"architectures": ["Qwen2ForCausalLM"]}
QWEN_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "norm_topk_prob": True,
}


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        (MISTRAL, (4096, 4096)),  # absent: the default of its class in transformers
        (MISTRAL | {"sliding_window": None}, (WHOLE_TEXT, WHOLE_TEXT)),
        (MISTRAL | {"sliding_window": 7}, (7, 7)),
        (
            MISTRAL | {"sliding_window": 7, "layer_types": ["full_attention", "sliding_attention"]},
            (WHOLE_TEXT, 7),
        ),
        ({}, (WHOLE_TEXT, WHOLE_TEXT)),
        (QWEN | {"sliding_window": 7}, (WHOLE_TEXT, WHOLE_TEXT)),
        (QWEN | {"sliding_window": 7, "use_sliding_window": True}, (WHOLE_TEXT, WHOLE_TEXT)),
        (
            QWEN | {"sliding_window": 7, "use_sliding_window": True, "max_window_layers": 1},
            (WHOLE_TEXT, 7),
        ),
        (
            QWEN | {"sliding_window": 7, "use_sliding_window": True, "max_window_layers": 0},
            (7, 7),
        ),
        ({"sliding_window": 7, "use_sliding_window": False}, (WHOLE_TEXT, WHOLE_TEXT)),
        ({"sliding_window": 7}, (WHOLE_TEXT, WHOLE_TEXT)),  # transformers' Llama has no windows
        ({"architectures": ["Phi3ForCausalLM"], "sliding_window": 7}, (7, 7)),
        (QWEN_MOE | {"sliding_window": 7, "use_sliding_window": True}, (7, 7)),
    ],
)
def test_every_spelling_of_sliding_windows_is_read(fields, windows):
    assert parsed(**fields).pattern.windows == windows


GEMMA3 = {"architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 6, "sliding_window": 8}


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_local_base_freq": 500.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            }
        },
    ],
    ids=["older", "newer"],
)
def test_layers_with_windows_may_have_a_rope_of_their_own(fields):
    config = parsed(**GEMMA3, **fields)
    *windowed, whole = config.pattern.ropes
    assert set(windowed) == {RopeConfig(theta=500.0, scaling=NoScaling())}
    assert whole == RopeConfig(theta=1e6, scaling=LinearScaling(factor=8.0)) == config.rope
    assert config.pattern.windows == (8, 8, 8, 8, 8, WHOLE_TEXT)
    assert config.is_tied


def test_absent_caps_are_those_of_the_family_and_null_means_none():
    gemma2 = {"architectures": ["Gemma2ForCausalLM"]}
    usual = parsed(**gemma2).multipliers
    assert (usual.score_cap, usual.logit_cap, usual.embedding) == (50.0, 30.0, 8.0)
    assert parsed(**gemma2).pattern.windows == (4096, WHOLE_TEXT)
    off = parsed(**gemma2, attn_logit_softcapping=None, final_logit_softcapping=None).multipliers
    assert (off.score_cap, off.logit_cap) == (0.0, 0.0)


def test_every_fourth_layer_of_smollm3_has_no_rope():
    smollm3 = {"architectures": ["SmolLM3ForCausalLM"], "num_hidden_layers": 8}
    ropes = parsed(**smollm3).pattern.ropes
    assert [rope == NO_ROPE for rope in ropes] == [False, False, False, True] * 2
    with pytest.raises(ConfigError, match="no_rope_layers"):
        parsed(**smollm3, no_rope_layers=[1, 0])
    with pytest.raises(ConfigError, match="add layer_types"):
        parsed(**smollm3, use_sliding_window=True, sliding_window=7)


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **LLAMA3}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", "rope_type": "llama3", **LLAMA3}},
        {
            "rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **LLAMA3},
            "rope_scaling": {"type": "llama3", **LLAMA3},
        },
    ],
    ids=["rope_parameters", "rope_scaling", "both spellings", "both forms"],
)
def test_all_spellings_of_rope_settings_are_equal(fields):
    rope = parsed(**fields).rope
    assert rope.theta == 5e5
    assert rope.scaling == Llama3Scaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=64
    )


def test_mixtral_without_rope_theta_has_the_default_of_its_format():
    config = parsed(
        architectures=["MixtralForCausalLM"], num_local_experts=4, num_experts_per_tok=2
    )
    assert config.rope.theta == 1e6


def test_the_oldest_spelling_of_linear_scaling_is_read():
    scaling = parsed(rope_scaling={"type": "linear", "factor": 2}).rope.scaling
    assert scaling == LinearScaling(factor=2.0)


def test_yarn_without_an_original_context_uses_the_context_of_the_model():
    scaling = parsed(rope_scaling={"rope_type": "yarn", "factor": 4.0}).rope.scaling
    assert isinstance(scaling, YarnScaling)
    assert scaling.original_context == 128
    assert scaling.attention_factor == pytest.approx(1.1386, abs=1e-4)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "LlamaForCausalLM, Llama4ForCausalLM"),
        ({"architectures": None}, "architecture"),
        ({"architectures": ["MiMoV2FlashForCausalLM"]}, "the body of .* not supported yet"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_window, got None"),
        ({"layer_types": ["sliding_attention"], "sliding_window": 4}, "each of the 2 layers"),
        ({"layer_types": ["chunked_attention"] * 2}, "chunked_attention"),
        ({"layer_types": [{}, []]}, "layer_types"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 0}, "integer sliding_window"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"is_causal": False}, "sets is_causal to False, but only True"),
        ({"layer_types": 1}, "a list layer_types, got 1"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"architectures": ["Gemma2ForCausalLM"], "hidden_act": "silu"}, "only gelu_pytorch_tanh"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        (
            {"architectures": ["Cohere2ForCausalLM"], "use_qk_norm": True},
            "sets use_qk_norm to True",
        ),
        ({"architectures": ["OlmoForCausalLM"], "clip_qkv": -1.0}, "a positive number clip_qkv"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"hidden_size": None}, "hidden_size"),
        ({"vocab_size": "50"}, "vocab_size"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"num_key_value_heads": 3}, "key-value heads"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": "x"}}, "linear"),
        ({"rope_scaling": {"type": "yarn", "factor": 0}}, "factor"),
        ({"rope_scaling": "yarn"}, "an object rope_scaling, got yarn"),
        (
            {
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
                "rope_scaling": {"type": "yarn", "factor": 4.0},
            },
            "rope_parameters and a rope_scaling that says otherwise",
        ),
        ({"max_position_embeddings": 10**12}, "max_position_embeddings above"),
        ({"vocab_size": 10**30}, "vocab_size above"),
        ({"num_hidden_layers": 10**7}, "num_hidden_layers above 10000"),
        (
            {
                "architectures": ["MixtralForCausalLM"],
                "num_local_experts": 10**9,
                "num_experts_per_tok": 2,
            },
            "1000000000 experts",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_unsupported_field_is_refused_by_name(changes, named):
    with pytest.raises(ConfigError, match=named):
        parsed(**changes)


def test_a_sliding_window_that_qwen_does_not_use_is_accepted():
    parsed(
        architectures=["Qwen2ForCausalLM"],
        use_sliding_window=False,
        sliding_window=32768,
        max_window_layers=28,
    )


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 200_000])
def test_a_damaged_config_is_refused_by_name(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_config(tmp_path)


def test_a_folder_without_config_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_config(tmp_path)


def test_a_config_is_read_from_its_folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(FIELDS))
    assert read_config(tmp_path) == parsed()


def test_a_missing_field_is_refused_with_the_path_of_the_folder(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": []}')
    with pytest.raises(ConfigError, match="must name one architecture") as caught:
        read_config(tmp_path)
    assert str(tmp_path) in str(caught.value)


GLM = {
    "architectures": ["Glm4MoeForCausalLM"],
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}


@pytest.mark.parametrize(
    ("fields", "share"),
    [
        ({}, 0.5),
        ({"partial_rotary_factor": 0.25}, 0.25),
        ({"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.75}}, 0.75),
    ],
)
def test_the_rotated_share_of_glm_is_read_from_either_place(fields, share):
    assert parsed(**GLM, **fields).rope.share == share


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("has_norm", [True, False])
def test_glm_has_the_biases_and_head_norms_of_its_config(has_bias, has_norm):
    family = parsed(**GLM, attention_bias=has_bias, use_qk_norm=has_norm).family
    assert (family.has_qkv_bias, family.has_head_norm) == (has_bias, has_norm)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({**GLM, "partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ({**GLM, "partial_rotary_factor": float("nan")}, "partial_rotary_factor"),
        ({**GLM, "partial_rotary_factor": 0.2}, "rotates 3 of the 16 channels .* partial_rotary"),
        ({**GLM, "partial_rotary_factor": 0.01}, "rotates 0 of the 16 channels"),
        ({**GLM, "head_dim": 10}, "rotates 5 of the 10 channels"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),  # of Llama
        (
            {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            "partial_rotary_factor .* use another model",
        ),
    ],
)
def test_unsupported_rope_settings_are_refused_by_name(fields, named):
    with pytest.raises(ConfigError, match=named):
        parsed(**fields)


QWEN3_MOE = GLM | {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 8}


@pytest.mark.parametrize(
    ("family", "field", "junk"),
    [
        ({}, "rope_parameters", "x"),
        ({}, "rope_scaling", [1]),
        ({}, "layer_types", True),
        ({"architectures": ["Qwen2ForCausalLM"]}, "rms_norm_eps", float("inf")),
        (GLM, "n_shared_experts", {"a": 1}),
        (GLM, "n_shared_experts", -1),
        (GLM, "routed_scaling_factor", "x"),
        (GLM, "first_k_dense_replace", [1]),
        (QWEN3_MOE, "mlp_only_layers", [{}]),
    ],
)
def test_a_field_of_another_type_is_refused_by_name(family, field, junk):
    with pytest.raises(ConfigError, match=field):
        parsed(**family | {field: junk})


@pytest.mark.parametrize(
    "settings",
    [{"rope_type": []}, {"rope_type": "yarn", "factor": 2.0, ORIGINAL: 1e999}],
)
def test_rope_settings_of_another_type_are_refused(settings):
    with pytest.raises(ConfigError, match="rope scaling of type"):
        parsed(rope_parameters=settings)
