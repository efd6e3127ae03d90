"""fp8 experts of a layer in one tensor, with scales in blocks, per expert, and on several ranks."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.decoders import harness_of, prompt
from support.tiny import tiny_model

from outrider.errors import ConfigError
from outrider.models.quantised.expert_stacks import find_scaled_stacks
from outrider.models.quantised.find_packed import PackedWeight
from outrider.models.quantised.quantisation import parse_quantisation
from outrider.models.quantised.read_cut import read_cut
from outrider.models.tensor_cut import Cut
from outrider.ops.linear.any_weight import widened

CONFIG = {"quant_method": "fp8", "weight_block_size": [4, 16]}
EXPERTS, HIDDEN, INTER = 3, 48, 24
SUFFIX = "gate_up_proj_scale_inv"


def codes_of(shape, rng):
    codes = rng.integers(0, 0x7E, shape) | (rng.integers(0, 2, shape) << 7)
    return torch.from_numpy(codes.astype(np.uint8)).view(torch.float8_e4m3fn)


def stack_of(outputs, inputs, rng, *, scales="blocks", num=EXPERTS):
    """Codes [experts, out, in], their scales, and the numbers, one by one."""
    codes = codes_of((num, outputs, inputs), rng)
    rows, columns = CONFIG["weight_block_size"] if scales == "blocks" else (outputs, inputs)
    shape = num, -(-outputs // rows), -(-inputs // columns)
    stored = rng.uniform(1e-4, 9e-4, shape).astype(np.float32)
    values = codes.float().numpy()
    for place in np.ndindex(*values.shape):
        expert, n, k = place
        values[place] *= stored[expert, n // rows, k // columns]
    return codes, torch.from_numpy(stored), torch.from_numpy(values)


def layer_of(*, is_transposed=False, scales="blocks", config=CONFIG):
    """The packed weights of a layer by name, its stored tensors, and the numbers of its stacks."""
    rng, stored, numbers = np.random.default_rng(2), {}, {}
    for name, shape in (("gate_up_proj", (2 * INTER, HIDDEN)), ("down_proj", (HIDDEN, INTER))):
        codes, scale, numbers[name] = stack_of(*shape, rng, scales=scales)
        if is_transposed:
            codes, scale = codes.transpose(1, 2), scale.transpose(1, 2)
        stored |= {f"m.experts.{name}": codes, f"m.experts.{name}_scale_inv": scale}
    return *found_in(stored, config), numbers


def found_in(stored, config):
    def type_of(name):
        return "F8_E4M3" if stored[name].dtype == torch.float8_e4m3fn else "F32"

    def shape_of(name):
        return tuple(stored[name].shape)

    return find_scaled_stacks(stored, type_of, shape_of, parse_quantisation(config)), stored


def read(weight: PackedWeight, stored, cut):
    parts = {
        suffix: weight.pick(suffix, stored[f"{weight.module}.{suffix}"])
        for suffix in weight.suffixes
    }
    weight.form.check(parts)
    return widened(read_cut(weight.form, parts, cut))


@pytest.mark.fast_cases(99)
@pytest.mark.parametrize("scales", ["blocks", "experts"])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_every_number_of_every_expert_is_read(is_transposed, scales):
    found, stored, numbers = layer_of(is_transposed=is_transposed, scales=scales)
    assert len(found) == 3 * EXPERTS
    gate, up = numbers["gate_up_proj"].chunk(2, 1)
    right = {"gate_proj": gate, "up_proj": up, "down_proj": numbers["down_proj"]}
    for projection, all_experts in right.items():
        for expert, values in enumerate(all_experts):
            weight = found[f"m.experts.{expert}.{projection}.weight"]
            for cut in (Cut(), Cut(0, ((8, 16),)), Cut(1, ((16, 24),))):
                assert torch.equal(read(weight, stored, cut), cut.of(values)), projection


@pytest.mark.parametrize(
    ("config", "change", "reason"),
    [
        (CONFIG | {"weight_block_size": [16, 16]}, lambda s: s[:, ::4], "gates and ups .* meet"),
        ({"quant_method": "fp8"}, lambda s: s, r"_scale_inv has the shape \[3, 12, 2\] instead"),
        (CONFIG, lambda s: s[1:], r"_scale_inv has the shape \[2, 12, 3\] instead of"),
    ],
)
def test_scales_that_do_not_fit_are_refused_by_name(config, change, reason):
    _, stored, _ = layer_of()
    name = f"m.experts.{SUFFIX}"
    with pytest.raises(ConfigError, match=reason):
        found_in(stored | {name: change(stored[name])}, config)


def test_a_folder_of_transformers_has_the_logits_of_its_numbers(tmp_path):
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    tiny_model("qwen3-moe").save_pretrained(plain, save_original_format=False)
    shutil.copytree(plain, packed)
    tensors, rng = load_file(plain / "model.safetensors"), np.random.default_rng(3)
    stored = dict(tensors)
    for name in [each for each in tensors if ".experts." in each]:
        num, outputs, inputs = tensors[name].shape
        stored[name], stored[name + "_scale_inv"], tensors[name] = stack_of(
            outputs, inputs, rng, num=num
        )
    save_file(tensors, plain / "model.safetensors")
    save_file(stored, packed / "model.safetensors")
    fields = json.loads((plain / "config.json").read_text()) | {"quantization_config": CONFIG}
    (packed / "config.json").write_text(json.dumps(fields))
    found, right = (harness_of(each).run({}, {1: (0, prompt(9))}) for each in (packed, plain))
    assert torch.equal(found, right)
