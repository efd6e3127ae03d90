"""The converted folder has the tensors of the GGUF file under Hugging Face names."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from outrider.errors import ConfigError
from outrider.hub.download_progress import SilentReporter
from outrider.hub.gguf_convert import convert
from outrider.hub.gguf_read import SUPPORTED_KINDS

FAMILIES = ("llama", "qwen2", "qwen3")
KINDS = tuple(kind for kind in SUPPORTED_KINDS if kind != "NVFP4")  # older packages lack it
STORED_TYPES = {"F16": torch.float16, "BF16": torch.bfloat16}


def converted(tiny, folder: Path) -> Path:
    path = tiny.write(folder / "tiny.gguf")
    (folder / "model").mkdir()
    convert(path, folder / "model", SilentReporter())
    return folder / "model"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_converted_tensor_equals_the_stored_one(
    make_gguf: Callable, tmp_path: Path, family: str, kind: str
) -> None:
    tiny = make_gguf(family, kind=kind, seed=KINDS.index(kind))
    written = load_file(converted(tiny, tmp_path) / "model.safetensors")
    assert written.keys() == tiny.expected.keys()
    for name, values in tiny.expected.items():
        is_matrix = values.ndim == 2
        assert written[name].dtype == (
            STORED_TYPES.get(kind, torch.float32) if is_matrix else torch.float32
        )
        np.testing.assert_array_equal(written[name].float().numpy(), values, err_msg=name)


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_loads_a_converted_folder_without_missing_weights(
    make_gguf: Callable, tmp_path: Path, family: str
) -> None:
    tiny = make_gguf(family, kind="Q8_0")
    folder = converted(tiny, tmp_path)
    model, loading = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(loading.values())
    assert model.config.model_type == family
    state = model.state_dict()
    for name, values in tiny.expected.items():
        assert torch.equal(state[name], torch.from_numpy(values)), name
    assert torch.equal(state["lm_head.weight"], state["model.embed_tokens.weight"])


def test_a_separate_head_unties_the_embeddings(make_gguf: Callable, tmp_path: Path) -> None:
    tiny = make_gguf("qwen2")
    embedding, _ = tiny.tensors["token_embd.weight"]
    tiny.tensors["output.weight"] = (embedding * 2, "F32")
    folder = converted(tiny, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is False
    assert torch.equal(model.lm_head.weight, 2 * model.model.embed_tokens.weight)


def split_gguf(tiny, folder: Path, num: int) -> list[Path]:
    """The tensors dealt out to files. The first one has the metadata, as llama.cpp splits."""
    paths = []
    for place in range(num):
        names = list(tiny.tensors)[place::num]
        part = replace(
            tiny,
            metadata=(tiny.metadata if not place else {}) | {"split.no": place, "split.count": num},
            tensors={name: tiny.tensors[name] for name in names},
        )
        paths.append(part.write(folder / f"tiny-{place + 1:05}-of-{num:05}.gguf"))
    return paths


@pytest.mark.parametrize("given", [0, 2])
def test_a_model_in_several_files_is_converted_from_any_of_them(
    make_gguf: Callable, tmp_path: Path, given: int
) -> None:
    tiny = make_gguf("llama", kind="Q8_0")
    paths = split_gguf(tiny, tmp_path, 3)
    (tmp_path / "model").mkdir()
    convert(paths[given], tmp_path / "model", SilentReporter())
    written = load_file(tmp_path / "model" / "model.safetensors")
    for name, values in tiny.expected.items():
        np.testing.assert_array_equal(written[name].numpy(), values, err_msg=name)


def test_a_missing_or_repeated_part_is_refused_by_name(make_gguf: Callable, tmp_path: Path) -> None:
    first, second = split_gguf(make_gguf("llama"), tmp_path, 2)
    second.write_bytes(first.read_bytes())
    with pytest.raises(ConfigError, match=r"tiny-00002-of-00002.gguf has 'blk.*as another file"):
        convert(first, tmp_path, SilentReporter())
    second.unlink()
    with pytest.raises(ConfigError, match=r"tiny-00002-of-00002.gguf is not beside it; download"):
        convert(first, tmp_path, SilentReporter())


def test_tensors_larger_than_a_chunk_are_written_completely(
    make_gguf: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.hub.gguf_convert._CHUNK_BYTES", 3000)  # two rows of 1024 bytes
    tiny = make_gguf("llama", kind="Q4_0")
    written = load_file(converted(tiny, tmp_path) / "model.safetensors")
    for name, values in tiny.expected.items():
        np.testing.assert_array_equal(written[name].numpy(), values, err_msg=name)


def test_the_reporter_receives_every_byte_once(make_gguf: Callable, tmp_path: Path) -> None:
    class Counter(SilentReporter):
        total = done = 0

        def start(self, task: str, total: int) -> None:
            self.total += total

        def advance(self, amount: int) -> None:
            self.done += amount

    counter = Counter()
    tiny = make_gguf("llama", kind="Q4_1")
    convert(tiny.write(tmp_path / "tiny.gguf"), tmp_path, counter)
    blocks = sum(raw.size for raw, kind in tiny.tensors.values() if kind == "Q4_1")
    floats = sum(4 * values.size for values in tiny.expected.values())
    assert counter.done == counter.total == floats + blocks


def test_numbers_of_the_config_are_short_decimals(make_gguf: Callable, tmp_path: Path) -> None:
    config = json.loads((converted(make_gguf("qwen3"), tmp_path) / "config.json").read_text())
    assert config["rms_norm_eps"] == 1e-6  # not the nearest float32, 9.999999974752427e-07
    assert (config["head_dim"], config["num_key_value_heads"]) == (64, 2)


def test_a_head_dim_that_is_not_hidden_over_heads_is_written_to_the_config(
    make_gguf: Callable, tmp_path: Path
) -> None:
    tiny = make_gguf("qwen3")
    tiny.metadata["qwen3.attention.key_length"] = 32
    tiny.metadata["qwen3.attention.value_length"] = 32
    config = json.loads((converted(tiny, tmp_path) / "config.json").read_text())
    assert config["head_dim"] == 32


def test_partial_rotary_embeddings_are_refused(make_gguf: Callable, tmp_path: Path) -> None:
    tiny = make_gguf("llama")
    tiny.metadata["llama.rope.dimension_count"] = 32
    with pytest.raises(ConfigError, match="32 rotary dimensions"):
        converted(tiny, tmp_path)
