"""k_scale and v_scale of checkpoints: codes of keys and values stay in their range."""

import json
import logging
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider import LLM, SamplingParams
from outrider.errors import ConfigError
from outrider.models.decoder_loader import load_decoder
from outrider.models.layers.kv_scales import HeadScales
from outrider.models.quantised.stored_kv_scales import find_kv_scales
from tests.support import packed_folders as forms
from tests.support.spoken import tiny_llama
from tests.support.thread_ranks import ThreadGroup

PROMPT = {"prompt_token_ids": [1, 5, 9, 5, 9, 30, 22, 17]}
PARAMS = SamplingParams(temperature=0.0, max_tokens=1, logprobs=8)
PREFIX = "model.layers.{}.self_attn."
NAMES = {
    "ModelOpt": ("k_proj.k_scale", "v_proj.v_scale"),
    "compressed-tensors": ("k_scale", "v_scale"),
    "AutoFP8": ("k_proj.output_scale", "v_proj.output_scale"),
}
LARGE = 2.0**14  # e4m3 ends at 448


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A quantised folder with keys and values that are far outside of e4m3."""
    plain, root = tmp_path_factory.mktemp("plain"), tmp_path_factory.mktemp("packed")
    tiny_llama().save_pretrained(plain)
    config = {"quant_method": "fbgemm_fp8"}
    packers = forms.linear_by(forms.fp8_rows)
    forms.write_packed(plain, packers, config, root / "packed", root / "wide")
    tensors = load_file(root / "packed" / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("q_proj.weight_scale", "o_proj.weight_scale")):
            tensors[name] = tensor / LARGE  # scores and outputs stay what they are
        if name.endswith(("k_proj.weight_scale", "v_proj.weight_scale")):
            tensors[name] = tensor * LARGE
    save_file(tensors, root / "packed" / "model.safetensors")
    return root / "packed"


def with_scales(source, folder, names, *, keys, values):
    shutil.copytree(source, folder)
    tensors = load_file(source / "model.safetensors")
    num = json.loads((source / "config.json").read_text())["num_hidden_layers"]
    for layer in range(num):
        for name, scale in zip(names, (keys, values), strict=True):
            tensors[PREFIX.format(layer) + name] = torch.tensor(scale)
    save_file(tensors, folder / "model.safetensors")
    return folder


def logprobs(folder, kv_cache_dtype):
    llm = LLM(folder, dtype="float32", device="cpu", max_num_seqs=1, kv_cache_dtype=kv_cache_dtype)
    (output,) = llm.generate(PROMPT, PARAMS, use_tqdm=False)
    return {token: each.logprob for token, each in output.outputs[0].logprobs[0].items()}


def distance(one, other):
    """Of the tokens that both report; all if these are few."""
    common = one.keys() & other.keys()
    return max((abs(one[token] - other[token]) for token in common), default=9.0)


@pytest.mark.parametrize("exporter", NAMES)
def test_keys_outside_of_the_range_need_their_scale(source, tmp_path, exporter):
    scaled = with_scales(
        source, tmp_path / "scaled", NAMES[exporter], keys=LARGE * 1.3, values=LARGE * 0.75
    )
    right = logprobs(source, "auto")
    assert logprobs(scaled, "auto") == right  # a wider cache needs no scales
    without, found = logprobs(source, "fp8"), logprobs(scaled, "fp8")
    assert distance(found, right) < 0.2
    assert distance(without, right) > 3 * distance(found, right)


def test_a_wide_type_is_that_of_activations_or_refused(source):
    assert logprobs(source, "float32") == logprobs(source, "auto")
    with pytest.raises(ConfigError, match=r"activations, float32 here, or fp8; leave it out"):
        logprobs(source, "bfloat16")


@pytest.mark.parametrize(
    ("scheme", "kv_cache_dtype", "said"),
    [
        ({"num_bits": 8, "type": "float"}, "auto", "calibrated for keys and values in fp8"),
        ({"num_bits": 8, "type": "float"}, "fp8", ""),
        ({"num_bits": 4, "type": "float"}, "auto", "announces a type of keys and values that is"),
        (None, "auto", ""),
    ],
)
def test_what_a_folder_announces_of_keys_is_said(
    source, tmp_path, caplog, scheme, kv_cache_dtype, said
):
    folder = shutil.copytree(source, tmp_path / "model")
    fields = json.loads((folder / "config.json").read_text())
    fields["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "kv_cache_scheme": scheme,
    }
    (folder / "config.json").write_text(json.dumps(fields))
    with caplog.at_level(logging.INFO):
        logprobs(folder, kv_cache_dtype)
    assert ("keys and values" in caplog.text) is bool(said)
    assert said in caplog.text


def test_drafts_change_no_token_with_scales(source, tmp_path):
    folder = with_scales(
        source, tmp_path / "scaled", NAMES["ModelOpt"], keys=LARGE, values=[LARGE / 2, LARGE * 3.0]
    )
    greedy = SamplingParams(temperature=0.0, max_tokens=12)
    answers = []
    for draft in ("none", "ngram", source):
        llm = LLM(
            folder,
            dtype="float32",
            device="cpu",
            max_num_seqs=1,
            kv_cache_dtype="fp8",
            draft=draft,
            adaptive=False,
        )
        (output,) = llm.generate(PROMPT, greedy, use_tqdm=False)
        answers.append(output.outputs[0].token_ids)
    assert answers[0] == answers[1] == answers[2]


def test_scales_become_powers_of_two_of_each_head():
    scales = HeadScales.make(
        torch.tensor([0.3, 2.0]),
        torch.tensor([5.0, 0.25]),
        group=2,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    vectors = torch.ones(1, 4, 3)
    scales.shrink_(vectors)
    assert vectors[0, :, 0].tolist() == [2.0, 0.5, 0.125, 4.0]
    heads = torch.ones(1, 4, 3)
    assert scales.of_queries(heads)[0, :, 0].tolist() == [0.5, 0.5, 2.0, 2.0]
    assert scales.of_read(heads)[0, :, 0].tolist() == [8.0, 8.0, 0.25, 0.25]


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        (torch.ones(3), "a.k_scale has 3 numbers, and the model has 2 heads of keys"),
        (torch.tensor(0.0), "a.k_scale holds numbers that are no scales"),
        (torch.tensor([1.0, torch.nan]), "a.k_scale holds numbers that are no scales"),
    ],
)
def test_damaged_scales_are_refused_by_name(stored, reason):
    with pytest.raises(ConfigError, match=reason):
        find_kv_scales({"a.k_scale": stored}, "a.", 2)


def test_one_scale_may_be_for_both():
    found = find_kv_scales({"a.kv_scale": torch.tensor([4.0]), "b.k_scale": torch.ones(1)}, "a.", 2)
    assert found.keys.tolist() == found.values.tolist() == [4.0, 4.0]
    assert find_kv_scales({"b.k_scale": torch.ones(1)}, "a.", 2) is None


def test_a_rank_has_the_scales_of_its_own_heads(source, tmp_path):
    folder = with_scales(
        source, tmp_path / "scaled", NAMES["ModelOpt"], keys=[2.0, 8.0], values=[4.0, 0.5]
    )
    found = []
    for rank in ThreadGroup(2).ranks:
        cpu = torch.device("cpu")
        decoder = load_decoder(folder, dtype="float32", device=cpu, ranks=rank)
        scales = decoder._parts.layers[0].attention._share._kv_scales
        found.append((1 / scales.shrink).flatten().tolist())
    assert found == [[2.0, 4.0], [8.0, 0.5]]
