import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny import save_tiny, tiny_model

from outrider.errors import ConfigError
from outrider.models.decoder_loader import load_decoder

CPU = torch.device("cpu")
DOWN = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture
def folder(tmp_path):
    save_tiny("llama", tmp_path)
    return tmp_path


def load(folder):
    return load_decoder(folder, dtype="float32", device=CPU)


def edit(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def shards_of(folder):
    return sorted(folder.glob("model-*.safetensors"))


def head_of(decoder):
    with torch.inference_mode():
        return decoder.logits(torch.eye(decoder.config.block.hidden))


def test_a_missing_tensor_is_refused_by_name(folder):
    edit(folder, lambda tensors: tensors.pop(DOWN))
    with pytest.raises(ConfigError, match=rf"lacks tensors \(1\): {DOWN}"):
        load(folder)


def test_many_missing_tensors_are_counted_and_five_are_listed(folder):
    edit(folder, lambda tensors: [tensors.pop(n) for n in list(tensors) if "layers.2" in n])
    with pytest.raises(ConfigError, match=r"lacks tensors \(9\): .* and 4 more") as caught:
        load(folder)
    assert str(caught.value).count("model.layers.2") == 5


def test_an_unexpected_tensor_is_refused_by_name(folder):
    edit(folder, lambda tensors: tensors.update({"model.layers.1.extra": torch.zeros(3)}))
    with pytest.raises(ConfigError, match=r"unexpected tensors \(1\): model\.layers\.1\.extra"):
        load(folder)


def test_a_layer_beyond_the_config_is_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    with pytest.raises(ConfigError, match=r"unexpected tensors \(9\): model\.layers\.2"):
        load(folder)


def test_a_mis_shaped_tensor_is_refused_with_both_shapes(folder):
    edit(folder, lambda tensors: tensors.update({DOWN: torch.zeros(32, 47)}))
    with pytest.raises(ConfigError, match=rf"{DOWN} \[32, 47\] instead of \[32, 48\]"):
        load(folder)


def test_a_tensor_that_is_not_floating_point_is_refused_by_name(folder):
    edit(folder, lambda tensors: tensors.update({DOWN: torch.zeros(32, 48, dtype=torch.int8)}))
    with pytest.raises(ConfigError, match=rf"{DOWN} as I8"):
        load(folder)


def test_stored_frequencies_are_ignored(folder):
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    edit(folder, lambda tensors: tensors.update({name: torch.zeros(4)}))
    load(folder)


def test_an_untied_model_must_store_its_head(folder):
    edit(folder, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(ConfigError, match=r"lm_head\.weight"):
        load(folder)


def test_a_tied_model_may_store_its_head_and_uses_the_embedding(tmp_path):
    model = save_tiny("llama-tied", tmp_path)
    edit(tmp_path, lambda tensors: tensors.update({"lm_head.weight": torch.zeros(67, 32)}))
    weight = model.model.embed_tokens.weight
    torch.testing.assert_close(head_of(load(tmp_path)), weight.T.contiguous())


def test_shards_load_as_one_file(tmp_path):
    model = tiny_model("llama")
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(shards_of(tmp_path)) > 2
    torch.testing.assert_close(head_of(load(tmp_path)), model.lm_head.weight.T.contiguous())


def test_weights_stored_in_half_precision_are_converted(tmp_path):
    model = tiny_model("llama").bfloat16()
    model.save_pretrained(tmp_path)
    decoder = load(tmp_path)
    assert decoder.dtype == torch.float32
    torch.testing.assert_close(head_of(decoder), model.lm_head.weight.float().T.contiguous())


@pytest.mark.parametrize("keep", [0.5, 0.01, 0.0])
def test_a_truncated_file_is_refused_by_name(keep, folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    with pytest.raises(ConfigError, match=r"model\.safetensors is missing or damaged"):
        load(folder)


def test_a_missing_shard_is_refused_by_name(tmp_path):
    tiny_model("llama").save_pretrained(tmp_path, max_shard_size="20KB")
    lost = shards_of(tmp_path)[1]
    lost.unlink()
    with pytest.raises(ConfigError, match=f"{lost.name} is missing or damaged"):
        load(tmp_path)


def test_a_damaged_index_is_refused_by_name(folder):
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"index\.json is damaged"):
        load(folder)


def test_a_folder_without_weights_is_refused(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"model\.safetensors is missing"):
        load(folder)


def in_two_files(folder, weight_map):
    """Two files with all tensors, the second with zeros; the index names one for each tensor."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    save_file(tensors, folder / "model-1.safetensors")
    zeros = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    save_file(zeros, folder / "model-2.safetensors")
    named = {name: weight_map(name) for name in tensors}
    index = {"weight_map": {name: file for name, file in named.items() if file}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("used", [1, 2])
def test_the_index_decides_about_a_tensor_in_two_files(folder, used):
    other = 3 - used
    in_two_files(folder, lambda name: f"model-{used if 'embed' in name else other}.safetensors")
    assert bool(load(folder).embedding.any()) == (used == 1)


def test_a_tensor_in_two_files_that_the_index_does_not_name_is_refused(folder):
    in_two_files(
        folder, lambda name: "" if name == DOWN else f"model-{1 + ('norm' in name)}.safetensors"
    )
    with pytest.raises(ConfigError, match=rf"has {DOWN} in model-1.* and model-2.* names neither"):
        load(folder)


@pytest.mark.parametrize("index", ['{"weight_map": {"a": 3}}', "[" * 200_000, "[]"])
def test_an_index_of_something_else_is_refused_by_name(folder, index):
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ConfigError, match=r"index\.json is damaged"):
        load(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_reported_by_name(folder, caplog, value):
    edit(folder, lambda tensors: tensors[DOWN].view(-1)[7:8].fill_(value))
    load(folder)
    (warning,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert f"NaN or infinity in weights (1): {DOWN};" in warning


def test_finite_weights_are_not_reported(folder, caplog):
    edit(folder, lambda tensors: tensors[DOWN].fill_(torch.finfo(torch.float32).max))
    load(folder)
    assert not [each for each in caplog.records if each.levelname == "WARNING"]
