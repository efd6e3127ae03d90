"""Where folders say how their weights are quantised: config.json, and the files of exporters."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider import LLM
from outrider.errors import ConfigError
from outrider.hub.model_folder import checked_folder
from outrider.models.quantised.quantisation import parse_quantisation
from outrider.models.quantised.quantisation_files import read_quantisation
from outrider.models.safetensors_reader import Checkpoint
from tests.support import packed_folders as forms
from tests.support.packed_forms import FORMS
from tests.support.spoken import tiny_llama

MODELOPT = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
GPTQ = {"bits": 4, "group_size": 8, "desc_act": True, "damp_percent": 0.01}
AUTO_AWQ = {"zero_point": True, "q_group_size": 8, "w_bit": 4, "version": "GEMM"}
COMPRESSED = {"compression_config": FORMS["int4 groups"][1]}


def auto_round(packing):
    fields = {"quant_method": "auto-round", "bits": 4, "group_size": 8, "data_type": "int"}
    extra = {"lm_head": {"bits": 16, "data_type": "float"}}
    packing = {"packing_format": f"auto_round:{packing}", "extra_config": extra}
    return {"quantization_config": fields | packing}


SAID = {
    "auto-round as GPTQ": ("GPTQ", "config.json", auto_round("auto_gptq")),
    "auto-round as AWQ": ("AWQ", "config.json", auto_round("auto_awq")),
    "ModelOpt": ("fp8 tensor", "hf_quant_config.json", MODELOPT),
    "AutoGPTQ": ("GPTQ", "quantize_config.json", GPTQ),
    "AWQ by AutoGPTQ": ("AWQ", "quantize_config.json", GPTQ | {"quant_method": "awq"}),
    "AutoAWQ": ("AWQ", "quant_config.json", AUTO_AWQ),
    "old compressed-tensors": ("int4 groups", "config.json", COMPRESSED),
    "in the text model": (
        "GPTQ",
        "config.json",
        {"text_config": {"quantization_config": FORMS["GPTQ"][1]}},
    ),
}


@pytest.fixture
def folder_of(tmp_path):
    """A folder of a form that says nothing about it, and the numbers of its weights."""

    def write(form):
        tiny_llama(intermediate=64).save_pretrained(tmp_path / "source")
        packer, packed = FORMS[form][0], tmp_path / "packed"
        packers = forms.linear_by(packer)
        forms.write_packed(tmp_path / "source", packers, {}, packed, tmp_path / "plain")
        return packed, load_file(tmp_path / "plain" / "model.safetensors")

    return write


def write_fields(path, fields):
    old = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(old | fields))


@pytest.mark.fast_cases(99)
@pytest.mark.parametrize("said", SAID)
def test_weights_are_read_as_the_file_of_their_exporter_says(folder_of, said):
    form, file, fields = SAID[said]
    packed, right = folder_of(form)
    with pytest.raises(ConfigError, match="has no quantization_config"), Checkpoint(packed):
        pass
    write_fields(packed / file, fields)
    with Checkpoint(packed) as found:
        assert set(found.names) == set(right)
        for name, numbers in right.items():
            assert torch.equal(found.read(name), numbers), name


def test_config_json_comes_before_other_files(folder_of):
    packed, _ = folder_of("GPTQ")
    write_fields(packed / "quantize_config.json", GPTQ | {"bits": 8})
    assert read_quantisation(packed).integers.bits == (8,)
    write_fields(packed / "config.json", {"quantization_config": FORMS["GPTQ"][1]})
    assert read_quantisation(packed).integers.bits == (4,)


def test_a_damaged_file_is_refused_by_name(folder_of):
    packed, _ = folder_of("GPTQ")
    for text in ("{", "[]"):
        (packed / "quantize_config.json").write_text(text)
        with pytest.raises(ConfigError, match=r"quantize_config.json .*download it again"):
            read_quantisation(packed)


@pytest.mark.parametrize("form", [None, ""])
def test_gptq_without_a_checkpoint_format_has_the_first_one(form):
    config = {"quant_method": "gptq", "bits": 4, "checkpoint_format": form}
    assert parse_quantisation(config).integers.zero_offset == 1


def test_the_only_file_may_have_the_name_that_an_exporter_gave_it(folder_of):
    packed, right = folder_of("GPTQ")
    write_fields(packed / "quantize_config.json", GPTQ)
    path = packed / "model.safetensors"
    path.rename(packed / "gptq_model-4bit-128g.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    with Checkpoint(checked_folder(packed)) as found:
        assert torch.equal(found.read(name), right[name])
    (packed / "other.safetensors").touch()
    with pytest.raises(ConfigError, match=r"lacks model.safetensors"):
        checked_folder(packed)


def test_scales_of_activations_are_reported_as_unused(folder_of):
    packed, _ = folder_of("fp8 tensor")
    write_fields(packed / "hf_quant_config.json", MODELOPT)
    llm = LLM(packed, dtype="float32", draft="none", kv_tokens=256, max_num_seqs=1)
    stored = {each.modules: (each.num, each.storage) for each in llm.weight_storage}
    assert stored["input_scale"] == (14, "not used: activations are float32")


def test_scales_of_queries_are_reported_as_unused(folder_of):
    packed, _ = folder_of("fp8 tensor")
    write_fields(packed / "hf_quant_config.json", MODELOPT)
    tensors = load_file(packed / "model.safetensors")
    scales = {f"model.layers.{i}.self_attn.{c}_scale": torch.ones(1) for i in (0, 1) for c in "qkv"}
    save_file(tensors | scales, packed / "model.safetensors")
    llm = LLM(packed, dtype="float32", draft="none", kv_tokens=256, max_num_seqs=1)
    stored = {each.modules: (each.num, each.storage) for each in llm.weight_storage}
    assert stored["q_scale"] == (2, "not used: activations are float32")


def test_a_list_of_modelopt_that_contradicts_is_refused(folder_of):
    packed, _ = folder_of("fp8 tensor")
    listed = {"quant_algo": "FP8", "exclude_modules": ["model.layers.0*"]}
    write_fields(packed / "hf_quant_config.json", MODELOPT | {"quantization": listed})
    with (
        pytest.raises(ConfigError, match=r"lists model.layers.0.* as not quantised"),
        Checkpoint(packed),
    ):
        pass


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (auto_round("llm_compressor")["quantization_config"], "auto_round:llm_compressor of int"),
        (
            auto_round("auto_gptq")["quantization_config"] | {"extra_config": {"x": {"bits": 8}}},
            "of 4 and 8 bits in one folder",
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"}, "NVFP4_AWQ are not read"),
        ({"quant_method": "modelopt_fp4", "quantization": {"quant_algo": "W4A8_AWQ"}}, "W4A8_AWQ"),
        ({"quant_method": "compressed-tensors", "format": "marlin-24"}, "marlin-24 are not read"),
        (
            {
                "quant_method": "compressed-tensors",
                "transform_config": {"config_groups": {"R3": {"type": "hadamard"}}},
            },
            "rotations of activations are not computed",
        ),
        ({"quant_method": "gptq", "bits": 4, "group_size": "128"}, "group_size is '128'"),
        ({"quant_method": "compressed-tensors", "format": ["x"]}, r"\['x'\] are not read"),
    ],
)
def test_settings_that_would_change_numbers_are_refused(config, reason):
    with pytest.raises(ConfigError, match=reason):
        parse_quantisation(config)


@pytest.mark.parametrize(
    ("fields", "scheme"),
    [
        ({}, "not stated"),
        ({"kv_cache_scheme": None}, "not stated"),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8_e4m3"),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "int"}}, "another"),
        ({"kv_cache_quant_algo": "fp8"}, "fp8_e4m3"),
        ({"kv_cache_quant_algo": "NVFP4"}, "another"),
    ],
)
@pytest.mark.parametrize("method", ["compressed-tensors", "modelopt"])
def test_the_type_of_keys_is_read(fields, scheme, method):
    assert parse_quantisation({"quant_method": method} | fields).kv_cache == scheme


def test_blocks_of_older_files_are_read():
    groups = {"g": {"weights": {"num_bits": 8, "type": "float", "block_structure": "128x64"}}}
    config = {"quant_method": "compressed-tensors", "config_groups": groups}
    assert parse_quantisation(config).block == (128, 64)
