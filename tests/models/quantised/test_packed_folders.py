"""Folders in the published quantised forms load as they are: the numbers are those they store."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import DeepseekV4ForCausalLM

from outrider import LLM, SamplingParams
from outrider.errors import ConfigError
from outrider.models.deepseek_v4.v4_dspark import load_v4_dspark
from outrider.models.quantised.read_cut import read_cut
from outrider.models.safetensors_reader import Checkpoint
from outrider.models.target import load_target
from outrider.models.tensor_cut import Cut
from outrider.ops.linear.any_weight import widened
from outrider.ops.linear.quantised_weight import QuantisedWeight
from outrider.runtime.draft_kinds import BlockDraft
from outrider.wire.draft_budget import Budget
from tests.support import packed_folders as forms
from tests.support.engines import engine_of, make_submission
from tests.support.matrix import SAMPLINGS
from tests.support.packed_forms import FORMS, FP8, gptq_config, packed_of
from tests.support.role_traces import traces
from tests.support.row_matrix import shape_of
from tests.support.split_folder import split_folder
from tests.support.spoken import tiny_llama
from tests.support.v4 import expected_logits, harness_of, prompt, tiny_v4
from tests.support.v4_dspark import save_with_dspark

UNEVEN = ["fp8 blocks, rows no multiple"]  # half of a weight ends inside of a block


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    tiny_llama(intermediate=64).save_pretrained(folder)  # whole groups of 32 inputs
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


@pytest.mark.fast_cases(99)
@pytest.mark.parametrize("form", FORMS)
def test_a_weight_and_its_scales_may_lie_in_different_shards(folders, form):
    packed, plain = folders(*FORMS[form])
    split_folder(packed, 3)
    with Checkpoint(packed) as found, Checkpoint(plain) as expected:
        assert set(found.names) == set(expected.names)
        for name in expected.names:
            torch.testing.assert_close(found.read(name), expected.read(name), rtol=0, atol=0)


@pytest.mark.parametrize("form", ["fp8 blocks", "GPTQ"])
def test_a_scale_that_two_shards_have_is_read_from_the_one_that_the_index_names(folders, form):
    packed, plain = folders(*FORMS[form])
    split_folder(packed, 3)
    index = json.loads((packed / "model.safetensors.index.json").read_text())["weight_map"]
    name = next(each for each in index if "up_proj" in each and "scale" in each)
    for file in set(index.values()) - {index[name]}:  # left there by another export
        tensors, stale = load_file(packed / file), load_file(packed / index[name])[name] * 2
        save_file(tensors | {name: stale}, packed / file)
    with Checkpoint(packed) as found, Checkpoint(plain) as expected:
        weight = name.rpartition(".")[0] + ".weight"
        assert torch.equal(found.read(weight), expected.read(weight))


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
    whole = found.quantised(parts)
    for cut in (Cut(0, ((0, 32),)), Cut(1, ((32, 64),)), Cut(0, ((8, 16), (40, 64)))):
        part = read_cut(found, parts, cut)
        assert torch.equal(widened(part), cut.of(values))
        if len(whole.order) and cut.dim == 1:
            continue  # a half has inputs of all groups
        assert isinstance(part, QuantisedWeight)
        assert part.scales.group == min(whole.scales.group, part.inputs)


def test_consecutive_groups_that_compressed_tensors_names_are_no_order():
    found, parts, values = packed_of("int4 groups", 64, 64)
    cut, parts = Cut(1, ((32, 64),)), parts | {"weight_g_idx": torch.arange(64).int() // 8}
    part = read_cut(found, parts, cut)
    assert torch.equal(widened(part), cut.of(values))
    assert (found.unit(parts, 1), part.scales.group) == (8, 8)


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


@pytest.fixture(scope="module")
def published_v4(tmp_path_factory):
    """fp8 blocks and MXFP4 experts, and their numbers."""
    root = tmp_path_factory.mktemp("v4")
    tiny_v4(moe_intermediate_size=32).save_pretrained(root / "source")
    forms.write_packed(
        root / "source", forms.as_v4_is_published, FP8, root / "packed", root / "plain"
    )
    return root / "packed", root / "plain"


def test_deepseek_v4_as_it_is_published_gives_the_logits_of_its_numbers(published_v4):
    found, expected = (harness_of(folder).run({}, {1: (0, prompt(30))}) for folder in published_v4)
    assert torch.equal(found, expected)


def test_deepseek_v4_as_it_is_published_gives_the_logits_of_transformers(published_v4):
    packed, plain = published_v4
    stored = {tensor.dtype for tensor in load_file(packed / "model.safetensors").values()}
    assert {torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.int8} <= stored
    theirs = DeepseekV4ForCausalLM.from_pretrained(plain).eval()
    tokens = prompt(70, seed=2)
    harness = harness_of(packed)
    found = [harness.run({}, {1: (first, tokens[first : first + 35])}) for first in (0, 35)]
    right = expected_logits(theirs, tokens)
    torch.testing.assert_close(torch.cat(found), right, rtol=0, atol=1e-4)


def as_modelopt_has_v4(name):
    """NVFP4 experts; attention is left as it was published, and so are experts of modules."""
    packer = forms.as_v4_is_published(name)
    if ".ffn.experts." in name:
        return forms.nvfp4 if "layers.1." in name else packer
    return packer and partial(forms.fp8_blocks, size=128, suffix="scale", is_power=True)


def test_deepseek_v4_of_modelopt_gives_the_logits_of_its_numbers(published_v4, tmp_path):
    config = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "ignore": ["*.attn.*"]}
    source, packed, plain = published_v4[0].parent / "source", tmp_path / "a", tmp_path / "b"
    forms.write_packed(source, as_modelopt_has_v4, config, packed, plain)
    kinds = {each.dtype for each in load_file(packed / "model.safetensors").values()}
    assert {torch.uint8, torch.int8, torch.float8_e4m3fn, torch.float8_e8m0fnu} <= kinds
    found, right = (harness_of(each).run({}, {1: (0, prompt(30))}) for each in (packed, plain))
    assert torch.equal(found, right)


@pytest.mark.slow
def test_dspark_in_deepseek_v4_as_it_is_published_drafts_what_its_numbers_draft(tmp_path):
    source, packed, plain = tmp_path / "source", tmp_path / "packed", tmp_path / "plain"
    save_with_dspark(source, moe_intermediate_size=32)
    forms.write_packed(source, forms.as_v4_is_published, FP8, packed, plain)
    found, expected = (_rounds_with_dspark(folder) for folder in (packed, plain))
    assert found == expected
    assert any(len(each.tokens) > 1 for each in found[1])


def _rounds_with_dspark(folder):
    target = load_target(folder, dtype="float32", device=torch.device("cpu"))
    model = load_v4_dspark(folder, target.config.dspark, target, dtype="float32")
    draft = BlockDraft(model=model, budget=Budget(steps=4, topk=1, nodes=5))
    sampling = replace(SAMPLINGS["greedy"], trace=True)
    asked = [make_submission("r", prompt(30), sampling, max_tokens=8)]
    return traces(engine_of(target, shape_of(draft, chunk=30), draft), asked)["r"][:2]


def _edit(folder, edit):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


PLACE = "model.layers.0.mlp.up_proj"


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_only_zero_biases_of_gptq_are_left_out(folders, value):
    packed, _ = folders(*FORMS["GPTQ"])
    _edit(packed, lambda t: t.update({f"{PLACE}.bias": torch.full((64,), value)}))
    if value:
        with pytest.raises(ConfigError, match=r"unexpected tensors .1.: .*up_proj.bias"):
            LLM(packed, draft="none", kv_tokens=256)
    else:
        LLM(packed, draft="none", kv_tokens=256)


DYNAMIC = {"-:.*down_proj": {}, "+:model.layers.0.mlp.up_proj": {"group_size": 16, "sym": False}}


def test_modules_of_gptq_may_be_left_out_or_have_other_groups(source, tmp_path):
    def packer(name):
        if "proj" not in name or "down_proj" in name:
            return None
        return partial(forms.gptq, group=16 if name == f"{PLACE}.weight" else 8)

    folders = packed, plain = tmp_path / "packed", tmp_path / "plain"
    forms.write_packed(source, packer, gptq_config(sym=False, dynamic=DYNAMIC), *folders)
    with Checkpoint(packed) as found, Checkpoint(plain) as expected:
        for name in expected.names:
            assert torch.equal(found.read(name), expected.read(name)), name
    config = gptq_config(dynamic={"-:.*up_proj": {}})
    stored = json.loads((packed / "config.json").read_text()) | {"quantization_config": config}
    (packed / "config.json").write_text(json.dumps(stored))
    with pytest.raises(ConfigError, match="up_proj as not quantised, and it is stored quantised"):
        LLM(packed, draft="none", kv_tokens=256)


def test_a_list_of_awq_names_parts_of_a_path(folders):
    config = FORMS["AWQ"][1] | {"modules_to_not_convert": ["gate", "lm_head"]}
    packed, _ = folders(forms.awq, config)
    LLM(packed, draft="none", kv_tokens=256)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"quant_method": "torchao"}, "weights quantised by torchao are not read"),
        ({"quant_method": "gptq", "bits": 3}, "weights of 3 bits are not read"),
        (gptq_config(dynamic={"+:x": {"bits": 8}}), "of 4 and 8 bits in one folder .dynamic."),
        (gptq_config(dynamic=["-:x"]), "dynamic in config.json must be an object"),
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
