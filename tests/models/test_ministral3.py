"""Ministral-3 and Mistral-Small-3: fields of their config.json, and folders with images."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.decoders import expected_logits, harness_of, prompt
from support.styled_families import MINISTRAL3
from support.tiny import save_tiny
from support.tiny_sizes import SIZES
from transformers import Mistral3Config, Mistral3ForConditionalGeneration, MistralConfig

from outrider.errors import ConfigError
from outrider.models.model_config import ModelConfig, parse_config, read_config
from outrider.models.multipliers import NO_GROWTH
from outrider.ops.attention.attention_rule import WHOLE_TEXT

TOLERANCE = 1e-4
TOKENS = prompt(40)
TEXTS = {
    "ministral3": MINISTRAL3,
    "mistral": MistralConfig(**SIZES, head_dim=16, sliding_window=None),
}
VISION = {
    "model_type": "pixtral",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "head_dim": 8,
    "image_size": 16,
    "patch_size": 4,
}


def is_right(folder, model):
    logits = harness_of(folder).run({}, {1: (0, TOKENS)})
    return bool((logits - expected_logits(model, TOKENS)).abs().max() <= TOLERANCE)


@pytest.mark.parametrize("mistake", ["none", "no growth", "one position early"])
def test_scores_grow_with_the_position_of_a_query(tmp_path, monkeypatch, mistake):
    model = save_tiny("ministral3", tmp_path)
    growth = read_config(tmp_path).multipliers.score_growth
    wrong = {"no growth": NO_GROWTH, "one position early": replace(growth, first=1)}
    parse = ModelConfig.within
    if mistake != "none":
        monkeypatch.setattr(
            ModelConfig,
            "within",
            lambda self, context: replace(
                parse(self, context),
                multipliers=replace(self.multipliers, score_growth=wrong[mistake]),
            ),
        )
    assert is_right(tmp_path, model) is (mistake == "none")


def make_with_images(folder, text, *, is_tied):
    torch.manual_seed(0)
    config = Mistral3Config(
        text_config=TEXTS[text].to_dict(), vision_config=VISION, tie_word_embeddings=is_tied
    )
    model = Mistral3ForConditionalGeneration(config).eval()
    model.config.text_config._attn_implementation = "eager"
    with torch.no_grad():
        for parameter in [*model.model.language_model.parameters(), *model.lm_head.parameters()]:
            parameter.normal_(0.0, 0.35)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("text", TEXTS)
def test_a_folder_with_images_is_loaded_as_its_text_part(tmp_path, text, is_tied):
    model = make_with_images(tmp_path, text, is_tied=is_tied)
    stored = load_file(tmp_path / "model.safetensors")
    assert {name.split(".")[0] for name in stored} > {"language_model", "vision_tower"}
    assert ("language_model.lm_head.weight" in stored) is not is_tied
    assert read_config(tmp_path).family.name == text
    assert is_right(tmp_path, model)


@pytest.mark.parametrize("stored", [True, False])
def test_an_output_layer_in_the_folder_is_used_whatever_the_field_says(tmp_path, stored):
    """Files of Mistral-Small-3 do not have the field, which means tied; they have the layer."""
    model = make_with_images(tmp_path, "mistral", is_tied=False)
    path, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    fields = json.loads(path.read_text())
    fields["text_config"].pop("tie_word_embeddings")
    fields.pop("tie_word_embeddings")
    path.write_text(json.dumps(fields))
    if not stored:
        tensors = load_file(weights)
        tensors.pop("language_model.lm_head.weight")
        save_file(tensors, weights)
        model.lm_head.weight = model.get_input_embeddings().weight
    assert is_right(tmp_path, model)


def test_fields_that_are_absent_mean_the_same_as_in_transformers():
    base = {**SIZES, "architectures": ["Ministral3ForCausalLM"], "rms_norm_eps": 1e-5}
    config = parse_config(base)
    theirs = type(MINISTRAL3)(**SIZES)
    rope = theirs.rope_parameters
    growth = config.multipliers.score_growth
    assert growth.factor == rope["llama_4_scaling_beta"]
    assert growth.interval == rope["original_max_position_embeddings"]
    assert config.rope.theta == rope["rope_theta"]
    assert config.rope.scaling.factor == rope["factor"]
    assert config.rope.scaling.attention_factor == 1.0
    assert set(config.pattern.windows) == {WHOLE_TEXT}
    rope = {"rope_type": "default", "rope_theta": 1e4}
    assert parse_config(base | {"rope_parameters": rope}).multipliers.score_growth == NO_GROWTH
    with pytest.raises(ConfigError, match="original_max_position_embeddings, got None"):
        parse_config(base | {"rope_parameters": rope | {"llama_4_scaling_beta": 0.1}})
