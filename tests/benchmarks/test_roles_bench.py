"""`benchmarks roles` with real servers of a tiny model: its file, and the end of its time."""

import json

import pytest
from support.spoken import write_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.__main__ import run
from benchmarks.roles.parts_file import PartsFile
from benchmarks.roles.time_limit import time_limit


@pytest.fixture(name="folder")
def model_of_many_words(tmp_path):
    """Prompts of the benchmark have token ids up to 2,000."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=2000, max_position_embeddings=1024, **sizes, **heads)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    write_tokenizer(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.slow
def test_every_part_is_written_and_bytes_are_those_of_the_kv(folder, tmp_path, capsys):
    target = tmp_path / "roles.json"
    flags = ["--draft", "none", "--device", "cpu", "--lengths", "64,300", "--rows", "4"]
    flags += ["--streams", "2", "--arrivals", "1", "--arrival-length", "300"]
    assert run(["roles", "--model", str(folder), *flags, "--json", str(target)]) == 0
    found = json.loads(target.read_text())
    assert list(found) == ["facts", "transfers", "roles apart", "one server"]
    for each in found["transfers"]:
        assert 1.0 < each["num_bytes"] / each["floor_bytes"] < 1.1  # messages and tags
        assert each["floor_bytes"] > 0
    assert found["one server"]["num_busy_gaps"] > 0
    assert found["one server"]["accept_length"] == 1.0
    assert "of floor" in capsys.readouterr().out


def add_without_end(parts):
    for number in range(10**9):
        parts.add("last", number)


def test_a_run_that_is_cut_off_keeps_its_parts(tmp_path):
    parts = PartsFile(tmp_path / "parts.json", {"model": "tiny"})
    with pytest.raises(SystemExit, match=r"the limit of 0.01 s is over"), time_limit(0.01):
        add_without_end(parts)
    assert json.loads((tmp_path / "parts.json").read_text())["facts"] == {"model": "tiny"}
