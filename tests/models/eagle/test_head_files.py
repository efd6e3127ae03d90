"""Heads whose weights are stored in several files."""

import json

import torch
from safetensors.torch import save_file

from outrider.models.eagle.head_weights import read_tensors


def test_the_index_decides_about_a_tensor_in_two_files(tmp_path):
    for number in (1, 2):
        tensors = {name: torch.full((2,), float(number)) for name in ("a", "b")}
        save_file(tensors, tmp_path / f"part-{number}.safetensors")
    index = {"weight_map": {"a": "part-1.safetensors", "b": "part-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert {name: tensor[0].item() for name, tensor in read_tensors(tmp_path).items()} == {
        "a": 1.0,
        "b": 2.0,
    }


def test_weights_that_are_not_finite_are_reported_by_name(tmp_path, caplog):
    save_file({"a": torch.tensor([1.0, float("nan")])}, tmp_path / "model.safetensors")
    read_tensors(tmp_path)
    assert "NaN or infinity in weights (1): a;" in caplog.text
