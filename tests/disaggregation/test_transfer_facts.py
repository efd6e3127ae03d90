"""Engines that compute other bits differ in a fact, so the prefill engine refuses the other."""

import json
from dataclasses import replace

import pytest
from support.engines import Shape, settings_of
from support.roles import make_half
from support.tiny import save_tiny

from outrider.config.attention_choice import AttentionChoice
from outrider.config.engine_config import EngineConfig
from outrider.disaggregation.transfer_facts import difference, transfer_facts
from outrider.hub.weights_fingerprint import fingerprint
from outrider.runtime.draft_kinds import NoDraft

SETTINGS = settings_of(Shape())
OTHERS = {
    "dtype": replace(SETTINGS, dtype="int8"),
    "arithmetic": replace(SETTINGS, execution=replace(SETTINGS.execution, arithmetic="fixed")),
    "device": replace(SETTINGS, device="cuda:0"),
    "attention backend": replace(SETTINGS, attention=AttentionChoice(draft="per_layer")),
}


@pytest.fixture(scope="module", name="folder")
def folder_of_a_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("facts")
    save_tiny("llama", folder)
    return folder


@pytest.mark.parametrize("name", OTHERS)
def test_other_arithmetic_is_refused_by_name(models, folder, name):
    half = make_half(models.target, Shape(), NoDraft())

    def facts_with(settings):
        rows = half.runner.row_images
        facts = half.engine.facts
        return transfer_facts(folder, EngineConfig(), settings, facts, pages=half.pages, rows=rows)

    assert difference(facts_with(SETTINGS), facts_with(SETTINGS)) == ""
    assert f"another {name} " in difference(facts_with(OTHERS[name]), facts_with(SETTINGS))


def test_other_codes_of_weights_or_of_keys_are_refused_by_name(models, folder):
    wide, narrow = (
        make_half(models.target, Shape(kv_dtype=dtype), NoDraft()) for dtype in ("auto", "fp8_e4m3")
    )

    def facts_of(half, config):
        rows, facts = half.runner.row_images, half.engine.facts
        return transfer_facts(folder, config, SETTINGS, facts, pages=half.pages, rows=rows)

    plain, quantised = EngineConfig(), EngineConfig(quantization="fp8")
    assert "another type of KV " in difference(facts_of(narrow, plain), facts_of(wide, plain))
    assert "another quantization " in difference(facts_of(wide, quantised), facts_of(wide, plain))


ORIGINAL = 64  # tokens; texts above it are rotated by the longer list
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": ORIGINAL,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
}


def with_context(context):
    return replace(SETTINGS, host=replace(SETTINGS.host, max_context=context))


@pytest.mark.parametrize("role", ["target", "drafter"])
def test_keys_that_another_rope_rotated_are_refused_by_name(models, folder, tmp_path, role):
    """Which of its two ropes a model has is decided by --max-model-len."""
    save_tiny("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"rope_parameters": LONGROPE}
    (tmp_path / "config.json").write_text(json.dumps(config))
    half = make_half(models.target, Shape(), NoDraft())
    target = tmp_path if role == "target" else folder
    engine = EngineConfig()
    if role == "drafter":
        engine = replace(engine, draft=replace(engine.draft, drafter=str(tmp_path)))

    def facts_with(context):
        rows, facts = half.runner.row_images, half.engine.facts
        settings = with_context(context)
        return transfer_facts(target, engine, settings, facts, pages=half.pages, rows=rows)

    assert "another rope " in difference(facts_with(ORIGINAL), facts_with(ORIGINAL + 1))
    assert difference(facts_with(ORIGINAL), facts_with(ORIGINAL - 1)) == ""
    assert difference(facts_with(ORIGINAL + 1), facts_with(ORIGINAL + 2)) == ""


@pytest.mark.parametrize("place", [0, 500_000, 999_999])
def test_weights_of_the_same_size_have_other_fingerprints(tmp_path, place):
    weights, file = bytearray(1_000_000), tmp_path / "model.safetensors"
    file.write_bytes(weights)
    before = fingerprint(tmp_path)
    weights[place] = 1
    file.write_bytes(weights)
    assert fingerprint(tmp_path) != before
