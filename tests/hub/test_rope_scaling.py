"""Rope scaling of a GGUF file is the same in the converted config.json."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from outrider.errors import ConfigError
from outrider.hub.download_progress import SilentReporter
from outrider.hub.gguf_convert import convert

THETA = 500000.0
HEAD_DIM = 64


def scaling_of(tiny, folder: Path) -> dict:
    convert(tiny.write(folder / "tiny.gguf"), folder, SilentReporter())
    return json.loads((folder / "config.json").read_text()).get("rope_scaling", {})


def llama3_divisors(factor: float) -> np.ndarray:
    """The divisor of each frequency in transformers."""
    rope = {
        "rope_type": "llama3",
        "rope_theta": THETA,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = LlamaConfig(head_dim=HEAD_DIM, max_position_embeddings=131072, rope_parameters=rope)
    slowed, _ = ROPE_INIT_FUNCTIONS["llama3"](config, device=torch.device("cpu"))
    plain = THETA ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    return (plain / slowed.numpy()).astype(np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_divisors_are_converted_to_their_factor(
    make_gguf: Callable, tmp_path: Path, factor: float
) -> None:
    tiny = make_gguf("llama")
    tiny.metadata["llama.rope.freq_base"] = THETA
    tiny.tensors["rope_freqs.weight"] = (llama3_divisors(factor), "F32")
    assert scaling_of(tiny, tmp_path) == {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def test_divisors_that_follow_no_known_rule_are_refused(
    make_gguf: Callable, tmp_path: Path
) -> None:
    tiny = make_gguf("llama")
    tiny.metadata["llama.rope.freq_base"] = THETA
    divisors = llama3_divisors(8.0)
    divisors[3] = 2.0  # a fast frequency, which llama 3 does not change
    tiny.tensors["rope_freqs.weight"] = (divisors, "F32")
    with pytest.raises(ConfigError, match="does not follow the llama 3 rule"):
        scaling_of(tiny, tmp_path)


def test_yarn_and_linear_scaling_are_written_to_the_config(
    make_gguf: Callable, tmp_path: Path
) -> None:
    tiny = make_gguf("qwen2")
    tiny.metadata["qwen2.rope.scaling.type"] = "yarn"
    tiny.metadata["qwen2.rope.scaling.factor"] = 4.0
    tiny.metadata["qwen2.rope.scaling.original_context_length"] = 32768
    assert scaling_of(tiny, tmp_path) == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
    }
    tiny.metadata["qwen2.rope.scaling.type"] = "linear"
    del tiny.metadata["qwen2.rope.scaling.original_context_length"]
    assert scaling_of(tiny, tmp_path) == {"rope_type": "linear", "factor": 4.0}


def test_unknown_scaling_is_refused(make_gguf: Callable, tmp_path: Path) -> None:
    tiny = make_gguf("llama")
    tiny.metadata["llama.rope.scaling.type"] = "longrope"
    with pytest.raises(ConfigError, match="longrope"):
        scaling_of(tiny, tmp_path)
