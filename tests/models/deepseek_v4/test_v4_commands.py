"""Commands that take any supported model take DeepSeek-V4, and the others say what they need."""

import json

import pytest
from support.spoken import write_tokenizer
from support.v4 import saved_v4

from benchmarks.__main__ import run as run_lab
from outrider import LLM
from outrider.bench.offline.v4_bytes import v4_cache_bytes, v4_step_bytes
from outrider.cli.main import run
from outrider.errors import ConfigError
from outrider.models.model_config import parse_config
from outrider.models.target import read_target

ALONE = "DeepseekV4ForCausalLM is supported as a target alone"


@pytest.fixture(scope="module")
def spoken(tmp_path_factory):
    """A folder with a tokenizer."""
    folder = tmp_path_factory.mktemp("spoken")
    saved_v4(folder)
    write_tokenizer(folder)
    return folder


def test_an_unknown_architecture_is_told_all_that_are_supported():
    with pytest.raises(ConfigError, match=r"GPT2 is not supported; use one of .*DeepseekV4ForCaus"):
        parse_config({"architectures": ["GPT2"]})


@pytest.mark.slow
def test_bench_decode_takes_real_weights(spoken, tmp_path):
    target = tmp_path / "out.json"
    flags = ["--rows", "1", "--prompt", "5", "--tokens", "4", "--json", str(target)]
    place = ["--dtype", "float32", "--device", "cpu", "--context", "0"]
    assert run_lab(["decode", "--model", str(spoken), *place, *flags]) == 0
    found = json.loads(target.read_text())
    assert not found["setting"]["weights"]["is_dummy"]
    assert found["setting"]["weights"]["cut_layers"] == 0
    assert found["series"][0]["points"][0]["floors"][0]["step_s"] > 0


@pytest.mark.slow
def test_bench_offline_times_it_beside_a_floor_of_its_own(spoken, tmp_path):
    target = tmp_path / "out.json"
    sizes = ["--prompt-tokens", "6", "--max-tokens", "9", "--batch", "3", "--threads", "1"]
    flags = ["--quick", "--dtype", "float32", "--peers", "none", "--json", str(target)]
    assert run(["bench", "offline", "--model", str(spoken), *sizes, *flags]) == 0
    written = json.loads(target.read_text())
    (floor,), config = written["floors"], read_target(spoken)
    assert floor["weight_bytes"] == v4_step_bytes(config, "float32", tokens=3)
    assert floor["kv_bytes"] == v4_cache_bytes(config, "float32", rows=3, context=10.5)
    (result,) = written["results"]
    assert result["decode"][0]["batch"] == 3


def test_what_it_cannot_do_is_refused_by_name(spoken, tmp_path, capsys):
    texts = tmp_path / "texts.jsonl"
    texts.write_text(json.dumps({"prompt": "the quick fox"}))
    assert run(["bench", "perplexity", "--model", str(spoken), "--prompts", str(texts)]) == 1
    said = capsys.readouterr().err
    assert ALONE in said
    assert "Qwen3ForCausalLM" in said
    assert "Qwen3NextForCausalLM" not in said  # nor does a model with states draft or take heads
    with pytest.raises(ConfigError, match=ALONE):
        LLM(spoken, draft=str(spoken), adaptive=False, device="cpu", max_model_len=64)
