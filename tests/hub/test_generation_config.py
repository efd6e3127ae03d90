"""Default sampling: the model's file, what we know about it, or the engine's."""

import json

import pytest

from outrider.errors import ConfigError
from outrider.hub.generation_config import sampling_defaults


@pytest.fixture
def folder(tmp_path):
    fields = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "eos_token_id": 2, "do_sample": True}
    (tmp_path / "generation_config.json").write_text(json.dumps(fields))
    return tmp_path


def test_the_sampling_of_the_models_file_is_used(folder):
    expected = {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
    assert sampling_defaults(folder, model="owner/model") == expected


@pytest.mark.parametrize("source", ["vllm", "none"])
def test_the_engines_own_values_can_be_chosen(folder, source):
    assert sampling_defaults(folder, model="owner/model", source=source) == {}


def test_the_file_of_another_folder_can_be_chosen(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    assert sampling_defaults(other, model="m", source=str(folder))["top_k"] == 20
    with pytest.raises(ConfigError, match="has no generation_config"):
        sampling_defaults(folder, model="m", source=str(other))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("smollm2", {"temperature": 0.2, "top_p": 0.9}),
        ("HuggingFaceTB/SmolLM2-360M-Instruct", {"temperature": 0.2, "top_p": 0.9}),
        ("owner/other", {}),
    ],
)
def test_a_model_without_sampling_in_its_file_gets_what_its_card_recommends(
    tmp_path, model, expected
):
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 2}')
    assert sampling_defaults(tmp_path, model=model) == expected


@pytest.mark.parametrize("text", ["{", "[]", '{"temperature": "hot"}', '{"top_p": true}'])
def test_a_damaged_file_is_refused(tmp_path, text):
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(ConfigError):
        sampling_defaults(tmp_path, model="m")
