"""A GGUF file that cannot be converted correctly is refused with a message of one line."""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from outrider.errors import ConfigError
from outrider.hub.download_progress import SilentReporter
from outrider.hub.gguf_convert import convert


def refusal(path: Path) -> str:
    """The message of the refusal, which must be one line."""
    with pytest.raises(ConfigError) as caught:
        convert(path, path.parent, SilentReporter())
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("share", [0.00002, 0.001, 0.003, 0.005, 0.5, 0.999])
def test_a_file_cut_short_is_called_truncated(
    make_gguf: Callable, tmp_path: Path, share: float
) -> None:
    whole = make_gguf("llama", kind="Q4_0").write(tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[: int(share * len(whole))])
    assert "cut.gguf is truncated; download it again" in refusal(path)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    assert "empty.gguf is not a readable GGUF file" in refusal(tmp_path / "empty.gguf")


def test_a_file_with_another_magic_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "picture.gguf"
    path.write_bytes(b"\x89PNG" + bytes(1000))
    assert "not a readable GGUF file" in refusal(path)


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_header_is_refused_or_converts(
    make_gguf: Callable, tmp_path: Path, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    whole = bytearray(make_gguf("llama", kind="Q4_0").write(tmp_path / "a.gguf").read_bytes())
    for _ in range(4):
        whole[rng.integers(0, 4800)] = rng.integers(0, 256)  # metadata and tensor table
    path = tmp_path / "damaged.gguf"
    path.write_bytes(whole)
    message = ""
    try:
        convert(path, tmp_path, SilentReporter())
    except ConfigError as error:  # any other error fails the test
        message = str(error)
    assert "\n" not in message


def test_an_unsupported_quantisation_is_refused_by_name(
    make_gguf: Callable, tmp_path: Path
) -> None:
    tiny = make_gguf("llama")
    block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType.Q8_K][1]
    raw = np.zeros((256, block_bytes), dtype=np.uint8)
    tiny.tensors["blk.0.ffn_up.weight"] = (raw, "Q8_K")
    message = refusal(tiny.write(tmp_path / "tiny.gguf"))
    assert "'blk.0.ffn_up.weight' has the unsupported quantisation Q8_K" in message
    assert "Q4_K_M" in message


def test_an_unsupported_architecture_is_refused_by_name(
    make_gguf: Callable, tmp_path: Path
) -> None:
    assert "architecture 'mamba'" in refusal(make_gguf("mamba").write(tmp_path / "tiny.gguf"))


def test_a_missing_tensor_is_refused_by_name(make_gguf: Callable, tmp_path: Path) -> None:
    tiny = make_gguf("qwen2")
    del tiny.tensors["blk.0.attn_k.bias"]
    assert "lacks the tensor blk.0.attn_k.bias" in refusal(tiny.write(tmp_path / "tiny.gguf"))


def test_an_unknown_tensor_is_refused_by_name(make_gguf: Callable, tmp_path: Path) -> None:
    tiny = make_gguf("llama")
    tiny.tensors["blk.0.ffn_gate_inp.weight"] = tiny.tensors["blk.0.ffn_up.weight"]
    assert "blk.0.ffn_gate_inp.weight" in refusal(tiny.write(tmp_path / "experts.gguf"))


@pytest.mark.parametrize("value", ["many", -1.5, 0])
def test_metadata_of_the_wrong_type_is_refused_by_name(
    make_gguf: Callable, tmp_path: Path, value: object
) -> None:
    tiny = make_gguf("llama")
    tiny.metadata["llama.attention.head_count"] = value
    assert "llama.attention.head_count is not" in refusal(tiny.write(tmp_path / "tiny.gguf"))


def test_a_file_whose_tokens_see_later_ones_is_refused(make_gguf: Callable, tmp_path: Path) -> None:
    tiny = make_gguf("qwen2")
    tiny.metadata["qwen2.attention.causal"] = False
    assert "qwen2.attention.causal to false" in refusal(tiny.write(tmp_path / "tiny.gguf"))


def test_missing_metadata_is_refused_by_name(make_gguf: Callable, tmp_path: Path) -> None:
    tiny = make_gguf("llama")
    del tiny.metadata["llama.context_length"]
    assert "lacks the metadata llama.context_length" in refusal(tiny.write(tmp_path / "t.gguf"))


def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "gone.gguf")
