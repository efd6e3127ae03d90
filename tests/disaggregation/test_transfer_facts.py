"""Engines that compute other bits differ in a fact, so the prefill engine refuses the other."""

from dataclasses import replace

import pytest
from support.engines import Shape, settings_of
from support.roles import make_half

from outrider.config.engine_config import EngineConfig
from outrider.disaggregation.transfer_facts import difference, transfer_facts
from outrider.hub.weights_fingerprint import fingerprint
from outrider.runtime.draft_kinds import NoDraft

SETTINGS = settings_of(Shape())
OTHERS = {
    "dtype": replace(SETTINGS, dtype="int8"),
    "arithmetic": replace(SETTINGS, execution=replace(SETTINGS.execution, arithmetic="fixed")),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_arithmetic_is_refused_by_name(models, tmp_path, name):
    half = make_half(models.target, Shape(), NoDraft())

    def facts_with(settings):
        rows = half.runner.row_images
        facts = half.engine.facts
        return transfer_facts(
            tmp_path, EngineConfig(), settings, facts, pages=half.pages, rows=rows
        )

    assert difference(facts_with(SETTINGS), facts_with(SETTINGS)) == ""
    assert f"another {name} " in difference(facts_with(OTHERS[name]), facts_with(SETTINGS))


def test_other_codes_of_weights_or_of_keys_are_refused_by_name(models, tmp_path):
    wide, narrow = (
        make_half(models.target, Shape(kv_dtype=dtype), NoDraft()) for dtype in ("auto", "fp8_e4m3")
    )

    def facts_of(half, config):
        rows, facts = half.runner.row_images, half.engine.facts
        return transfer_facts(tmp_path, config, SETTINGS, facts, pages=half.pages, rows=rows)

    plain, quantised = EngineConfig(), EngineConfig(quantization="fp8")
    assert "another type of KV " in difference(facts_of(narrow, plain), facts_of(wide, plain))
    assert "another quantization " in difference(facts_of(wide, quantised), facts_of(wide, plain))


@pytest.mark.parametrize("place", [0, 500_000, 999_999])
def test_weights_of_the_same_size_have_other_fingerprints(tmp_path, place):
    weights, file = bytearray(1_000_000), tmp_path / "model.safetensors"
    file.write_bytes(weights)
    before = fingerprint(tmp_path)
    weights[place] = 1
    file.write_bytes(weights)
    assert fingerprint(tmp_path) != before
