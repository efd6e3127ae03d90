"""Folders in the published quantised forms load as they are: the numbers are those they store."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider import LLM, SamplingParams
from outrider.errors import ConfigError
from outrider.models.quantised.read_cut import read_cut
from outrider.models.safetensors_reader import Checkpoint
from outrider.models.tensor_cut import Cut
from outrider.ops.linear.any_weight import widened
from outrider.ops.linear.quantised_weight import QuantisedWeight
from tests.support import packed_folders as forms
from tests.support.packed_forms import FORMS, FP8, packed_of
from tests.support.spoken import tiny_llama
from tests.support.v4 import harness_of, prompt, tiny_v4

UNEVEN = ["fp8 blocks, rows no multiple"]  # half of a weight ends inside of a block


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    tiny_llama().save_pretrained(folder)
    return folder


@pytest.fixture
def folders(source, tmp_path):
    def write(packer, config):
        packers = forms.linear_by(packer)
        forms.write_packed(source, packers, config, tmp_path / "packed", tmp_path / "plain")
        return tmp_path / "packed", tmp_path / "plain"

    return write


@pytest.mark.fast_cases(99)
@pytest.mark.parametrize("form", FORMS)
def test_every_stored_number_is_read(folders, form):
    packed, plain = folders(*FORMS[form])
    with Checkpoint(packed) as found, Checkpoint(plain) as expected:
        assert set(found.names) == set(expected.names)
        for name in expected.names:
            torch.testing.assert_close(found.read(name), expected.read(name), rtol=0, atol=0)


def cuts_of(size):
    half = size // 2
    yield Cut(0, ((0, half),))
    yield Cut(1, ((half, size),))
    for dim in (0, 1):
        yield Cut(dim, ((3, size - 5),))  # inside of blocks, words and groups
        yield Cut(dim, ((1, 2), (half, half + 9)))
        yield Cut(dim, ((half, half),))  # of a rank that has no part of it


@pytest.mark.fast_cases(99)
@pytest.mark.parametrize("form", FORMS)
def test_a_part_of_a_weight_has_the_numbers_of_the_whole(folders, form):
    packed, plain = folders(*FORMS[form])
    name = "model.layers.0.self_attn.q_proj.weight"
    with Checkpoint(packed) as found, Checkpoint(plain) as expected:
        whole = expected.read(name)
        for cut in cuts_of(min(whole.shape)):
            torch.testing.assert_close(found.read(name, cut), cut.of(whole), rtol=0, atol=0)


@pytest.mark.fast_cases(99)
@pytest.mark.parametrize("form", [name for name in FORMS if "order" not in name])
def test_the_rest_of_a_weight_is_not_widened(form):
    found, parts, _ = packed_of(form, 64, 64)
    for dim in (0, 1):
        unit = found.unit(parts, dim)
        assert 0 < unit <= 32
        few = found.narrow(parts, dim, 0, unit)
        assert found.shape(few)[dim] == unit
        assert found.quantised(few).widen().numel() == 64 * unit


@pytest.mark.fast_cases(99)
@pytest.mark.parametrize("form", [name for name in FORMS if name not in UNEVEN])
def test_ranks_keep_the_codes_of_their_halves(form):
    found, parts, values = packed_of(form, 64, 64)
    has_order = len(found.quantised(parts).order) > 0
    for cut in (Cut(0, ((0, 32),)), Cut(1, ((32, 64),)), Cut(0, ((8, 16), (40, 64)))):
        part = read_cut(found, parts, cut)
        assert isinstance(part, QuantisedWeight) or (has_order and cut.dim == 1)
        assert torch.equal(widened(part), cut.of(values))


@pytest.mark.parametrize("form", ["fp8 blocks", "GPTQ", "NVFP4"])
def test_the_answers_are_those_of_the_numbers(folders, form):
    params = SamplingParams(temperature=0.7, seed=1, max_tokens=8, ignore_eos=True)
    packed, plain = folders(*FORMS[form])
    prompt = {"prompt_token_ids": [3, 4, 5, 3, 4, 5, 3, 4]}
    first, second = (
        LLM(folder, draft=draft, adaptive=False, kv_tokens=256, max_num_seqs=2).generate(
            [prompt], params
        )
        for folder, draft in ((packed, "ngram"), (plain, "none"))
    )
    assert first[0].outputs[0].token_ids == second[0].outputs[0].token_ids


def test_deepseek_v4_as_it_is_published_gives_the_hidden_states_of_its_numbers(tmp_path):
    source, packed, plain = tmp_path / "source", tmp_path / "packed", tmp_path / "plain"
    tiny_v4().save_pretrained(source)
    forms.write_packed(source, forms.as_v4_is_published, FP8, packed, plain)
    found, expected = (
        harness_of(folder).run({}, {1: (0, prompt(30))}) for folder in (packed, plain)
    )
    assert torch.equal(found, expected)


def _edit(folder, edit):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


PLACE = "model.layers.0.mlp.up_proj"


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_only_zero_biases_of_gptq_are_left_out(folders, value):
    packed, _ = folders(*FORMS["GPTQ"])
    _edit(packed, lambda t: t.update({f"{PLACE}.bias": torch.full((48,), value)}))
    if value:
        with pytest.raises(ConfigError, match=r"unexpected tensors .1.: .*up_proj.bias"):
            LLM(packed, draft="none", kv_tokens=256)
    else:
        LLM(packed, draft="none", kv_tokens=256)


def test_a_list_of_awq_names_parts_of_a_path(folders):
    config = FORMS["AWQ"][1] | {"modules_to_not_convert": ["gate", "lm_head"]}
    packed, _ = folders(forms.awq, config)
    LLM(packed, draft="none", kv_tokens=256)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda t: t.pop(f"{PLACE}.weight_scale_inv"), r"quantised tensors \(1\).*up_proj.weight"),
        (lambda t: t.update({"model.norm.weight_scale_inv": torch.ones(1)}), "unexpected"),
        (
            lambda t: t.update({f"{PLACE}.weight_scale_inv": torch.ones(3, 2)}),
            "up_proj.weight is damaged: a scale of .3, 2. does not fit",
        ),
        (lambda t: t.update({f"{PLACE}.weight": t[f"{PLACE}.weight"][:-1]}), "mis-shaped"),
    ],
)
def test_damaged_scales_are_refused_by_name(folders, edit, reason):
    packed, _ = folders(*FORMS["fp8 blocks"])
    _edit(packed, edit)
    with pytest.raises(ConfigError, match=reason):
        LLM(packed, draft="none", kv_tokens=256)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"quant_method": "torchao"}, "weights quantised by torchao are not read"),
        ({"quant_method": "gptq", "bits": 3}, "weights of 3 bits are not read"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"-:x": {}}}, "dynamic"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version gemv"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "two positive sizes"),
        ({"quant_method": "fp8", "ignored_layers": PLACE}, "must be a list"),
        (FP8 | {"ignored_layers": [PLACE]}, "lists .*up_proj as not quantised, and it is stored"),
        (FP8 | {"modules_to_not_convert": ["re:.*up_proj"]}, "up_proj as not quantised"),
        (FP8 | {"modules_to_not_convert": ["re:(("]}, "wrong pattern"),
        ({"quant_method": "gptq", "bits": 4.0}, "weights of 4.0 bits are not read"),
    ],
)
def test_configs_that_do_not_fit_are_refused_with_the_fix(folders, config, reason):
    packed, _ = folders(*FORMS["fp8 blocks"])
    stored = json.loads((packed / "config.json").read_text())
    stored["quantization_config"] = config
    (packed / "config.json").write_text(json.dumps(stored))
    with pytest.raises(ConfigError, match=reason):
        LLM(packed, draft="none", kv_tokens=256)
