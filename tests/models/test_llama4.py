"""Llama-4: fields of its config.json, folders with images, and mistakes put back."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.decoders import expected_logits, harness_of, prompt
from support.styled_families import LLAMA4
from support.tiny import VOCAB
from transformers import Llama4Config, Llama4ForCausalLM, Llama4ForConditionalGeneration

from outrider.errors import ConfigError
from outrider.models import decoder
from outrider.models.mixture_loader import WeightedInputs
from outrider.models.model_config import ModelConfig, parse_config, read_config
from outrider.ops.attention.attention_rule import WHOLE_TEXT
from outrider.ops.moe.routing import route
from outrider.ops.moe.routing_config import RoutingConfig

TOLERANCE = 1e-4
TOKENS = prompt(30)


def make_model(folder, **changes):
    torch.manual_seed(0)
    model = Llama4ForCausalLM(type(LLAMA4)(**{**LLAMA4.to_dict(), **changes})).eval()
    model.config._attn_implementation = "eager"
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, 0.35)
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama4")
    return folder, make_model(folder)


def is_right(folder, model):
    logits = harness_of(folder).run({}, {1: (0, TOKENS)})
    return bool((logits - expected_logits(model, TOKENS)).abs().max() <= TOLERANCE)


CHANGES = {
    "two experts of a token": {"num_experts_per_tok": 2},
    "no norm of heads": {"use_qk_norm": False},
    "scores do not grow": {"attn_temperature_tuning": False},
    "experts in every second layer": {"interleave_moe_layer_step": 2, "moe_layers": None},
}


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("change", CHANGES)
def test_fields_mean_what_they_mean_in_transformers(tmp_path, change):
    assert is_right(tmp_path, make_model(tmp_path, **CHANGES[change]))


def mistake_of(patch, name):
    """Put back a mistake."""
    if name == "no chunks":
        rule = ModelConfig.rule_at
        patch.setattr(
            ModelConfig,
            "rule_at",
            lambda self, layer: replace(rule(self, layer), attention_chunk=WHOLE_TEXT),
        )
    if name == "no growth":
        patch.setattr(decoder, "NO_ROPE", None)
    if name == "weighted outputs":
        patch.setattr(WeightedInputs, "add_", lambda self, *args: self._experts.add_(*args))


@pytest.mark.parametrize("mistake", ["none", "no chunks", "no growth", "weighted outputs"])
@pytest.mark.fast_cases(4)
def test_parts_of_a_layer_that_are_left_out_are_noticed(tiny, monkeypatch, mistake):
    mistake_of(monkeypatch, mistake)
    assert is_right(*tiny) is (mistake == "none")


def test_experts_are_chosen_by_logits_where_sigmoids_are_all_one():
    logits = torch.tensor([[30.0, 60.0, 40.0, 50.0]])
    config = RoutingConfig(top_k=2, score="sigmoid", is_normed=False)
    slots = torch.tensor([16])
    routing = route(logits, config, torch.empty(0), slots, page_size=16)
    assert routing.experts.tolist() == [[1, 3]]
    assert routing.weights.tolist() == [[1.0, 1.0]]


def test_experts_may_be_stored_one_by_one(tiny, tmp_path):
    """As in quantised folders."""
    folder, model = tiny
    tensors = {}
    for name, each in load_file(folder / "model.safetensors").items():
        block, stacked, kind = name.partition(".experts.")
        if not stacked:
            tensors[name] = each
            continue
        parts = {"down_proj": each}
        if kind == "gate_up_proj":
            parts = dict(zip(("gate_proj", "up_proj"), each.chunk(2, 2), strict=True))
        for part, weights in parts.items():
            for expert, weight in enumerate(weights):
                tensors[f"{block}.experts.{expert}.{part}.weight"] = weight.T.contiguous()
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    save_file(tensors, tmp_path / "model.safetensors")
    assert is_right(tmp_path, model)


def test_published_fields_are_read(tiny):
    """Those of Llama-4-Scout: lists are empty or absent, frequencies scale at one border."""
    fields = json.loads((tiny[0] / "config.json").read_text())
    for name in ("layer_types", "moe_layers", "rope_parameters"):
        fields.pop(name)
    scaling = {
        "factor": 16.0,
        "high_freq_factor": 1.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 64,
        "rope_type": "llama3",
    }
    fields |= {
        "num_hidden_layers": 8,
        "no_rope_layers": [],
        "attention_chunk_size": 8192,
        "rope_theta": 500000.0,
        "rope_scaling": scaling,
    }
    config = parse_config(fields)
    has_rope = [rope.share > 0 for rope in config.pattern.ropes]
    assert has_rope == [True, True, True, False] * 2
    assert config.pattern.attention_chunks == tuple(8192 if r else WHOLE_TEXT for r in has_rope)
    assert config.experts.layers == frozenset(range(8))
    yarn = {**fields, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    with pytest.raises(ConfigError, match="yarn is not supported for llama4"):
        parse_config(yarn)
    with pytest.raises(ConfigError, match="chunked_attention, which is not supported"):
        parse_config(
            {**fields, "architectures": ["LlamaForCausalLM"], "rope_scaling": None}
            | {"layer_types": ["chunked_attention"] * 8}
        )


def test_a_folder_with_images_is_loaded_as_its_text_part(tmp_path):
    vision = {
        "hidden_size": 16,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 8,
        "patch_size": 4,
        "vision_output_dim": 16,
        "projector_input_dim": 16,
        "projector_output_dim": 16,
    }
    torch.manual_seed(0)
    config = Llama4Config(vision_config=vision, text_config=LLAMA4.to_dict())
    model = Llama4ForConditionalGeneration(config).eval()
    model.language_model.config._attn_implementation = "eager"
    with torch.no_grad():
        for parameter in model.language_model.parameters():
            parameter.normal_(0.0, 0.35)
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert {name.split(".")[0] for name in stored} > {"language_model", "vision_model"}
    assert read_config(tmp_path).vocab_size == VOCAB
    assert is_right(tmp_path, model.language_model)
