"""`--quantization fp8`: a float folder becomes e4m3 codes with a scale per output, at load."""

import shutil
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider import LLM, SamplingParams
from outrider.errors import ConfigError
from outrider.models.quantised.expert_stacks import StackAxes
from outrider.models.safetensors_reader import Checkpoint
from outrider.models.tensor_cut import Cut
from outrider.ops.linear.quantised_weight import QuantisedWeight
from outrider.runtime.resolve_quantization import resolve_quantization
from tests.support import packed_folders as forms
from tests.support.packed_forms import FORMS
from tests.support.spoken import tiny_llama
from tests.support.styled_families import STYLED_FAMILIES

# Every number of e4m3, from its definition: 4 bits of exponent with bias 7, 3 of mantissa.
E4M3 = np.array(
    [m / 8 * 2.0**-6 for m in range(8)]
    + [(1 + m / 8) * 2.0 ** (e - 7) for e in range(1, 16) for m in range(8) if (e, m) != (15, 7)]
)
NAMES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FUSED = ("qkv_proj", "gate_up_proj")  # of Phi-3
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, logprobs=2)
PROMPTS = [{"prompt_token_ids": [1, 5, 9, 5, 9]}, {"prompt_token_ids": [7, 3, 2, 8]}]


def nearest(weight: np.ndarray) -> np.ndarray:
    """What a weight becomes: the nearest code of every number, the even one of two."""
    scales = (np.abs(weight).max(1) / np.float32(448)).astype(np.float32)[:, None]
    sizes = np.abs((weight / scales).astype(np.float32)).astype(np.float64)
    above = np.searchsorted(E4M3, sizes).clip(1, len(E4M3) - 1)
    low, high = E4M3[above - 1], E4M3[above]
    is_low = (sizes - low < high - sizes) | ((sizes - low == high - sizes) & (above % 2 == 1))
    codes = np.where(is_low, low, high).astype(np.float32) * np.sign(weight)
    return (codes * scales).astype(np.float32)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    tiny_llama().save_pretrained(folder)
    return folder


def round_projections(source, folder):
    """The same model with the numbers that its codes stand for, in float32."""
    shutil.copytree(source, folder)
    tensors = load_file(source / "model.safetensors")
    for name, tensor in tensors.items():
        if name.split(".")[-2] in (*NAMES, *FUSED):
            tensors[name] = torch.from_numpy(nearest(tensor.float().numpy()))
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def plain(source, tmp_path_factory):
    return round_projections(source, tmp_path_factory.mktemp("plain") / "model")


def load(folder, **arguments) -> LLM:
    return LLM(folder, dtype="float32", device="cpu", max_num_seqs=2, **arguments)


@contextmanager
def in_codes(folder, *, is_transposed=False):
    with Checkpoint(folder) as checkpoint:
        checkpoint.quantise("fp8", StackAxes(is_transposed=is_transposed))
        yield checkpoint


def test_projections_are_rounded_to_codes_and_nothing_else_is(source, plain):
    with in_codes(source) as found, Checkpoint(plain) as expected:
        assert set(found.names) == set(expected.names)
        for name in expected.names:
            torch.testing.assert_close(found.read(name), expected.read(name), rtol=0, atol=0)


def test_fused_projections_are_rounded_too(tmp_path):
    STYLED_FAMILIES["phi3"]().save_pretrained(tmp_path / "source")
    plain = round_projections(tmp_path / "source", tmp_path / "plain")
    test_projections_are_rounded_to_codes_and_nothing_else_is(tmp_path / "source", plain)
    test_logits_are_those_of_the_dequantised_model(tmp_path / "source", plain)


def test_logits_are_those_of_the_dequantised_model(source, plain):
    for one, other in zip(
        load(source, quantization="fp8").generate(PROMPTS, GREEDY, use_tqdm=False),
        load(plain).generate(PROMPTS, GREEDY, use_tqdm=False),
        strict=True,
    ):
        assert one.outputs[0].token_ids == other.outputs[0].token_ids
        for left, right in zip(one.outputs[0].logprobs, other.outputs[0].logprobs, strict=True):
            assert left.keys() == right.keys()
            for token in left:
                assert abs(left[token].logprob - right[token].logprob) < 1e-4


@pytest.mark.parametrize("draft", ["ngram", "model"])
def test_drafts_change_no_token(source, draft):
    drafter = source if draft == "model" else draft  # the model itself, not quantised
    answers = [
        [
            output.outputs[0].token_ids
            for output in load(source, quantization="fp8", draft=each, adaptive=False).generate(
                PROMPTS, GREEDY, use_tqdm=False
            )
        ]
        for each in ("none", drafter)
    ]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("cut", [Cut(0, ((3, 9), (20, 31))), Cut(1, ((5, 17),))])
def test_a_rank_reads_its_part_of_the_same_codes(source, cut):
    name = "model.layers.0.self_attn.o_proj.weight"
    with in_codes(source) as found:
        whole = found.read(name)
        assert torch.equal(found.read(name, cut), cut.of(whole))
        part = found.read_weight(name, cut)
        assert isinstance(part, QuantisedWeight)
        assert len(part.scales.scales) == 1


def test_a_row_of_zeros_stays_zero_and_one_without_numbers_is_reported(source, tmp_path, caplog):
    folder = shutil.copytree(source, tmp_path / "model")
    tensors = load_file(source / "model.safetensors")
    name = "model.layers.0.self_attn.o_proj.weight"
    tensors[name][2], tensors[name][3, 0] = 0.0, torch.nan
    save_file(tensors, folder / "model.safetensors")
    with in_codes(folder) as found:
        read = found.read(name)
    assert not read[2].any()
    assert read[3].isnan().all()
    assert torch.isfinite(read[4:]).all()
    assert name in caplog.text


def test_a_folder_that_is_quantised_already_is_refused(source, tmp_path):
    config = {"quant_method": "fbgemm_fp8"}
    packers = forms.linear_by(forms.fp8_rows)
    forms.write_packed(source, packers, config, tmp_path / "packed", tmp_path / "plain")
    with pytest.raises(ConfigError, match=r"is quantised already \(fbgemm_fp8\), .*leave it out"):
        load(tmp_path / "packed", quantization="fp8")


def test_the_numbers_of_gguf_blocks_are_refused(source, tmp_path):
    folder = shutil.copytree(source, tmp_path / "model")
    tensors = load_file(source / "model.safetensors")
    for name, tensor in tensors.items():
        if name.split(".")[-2] in NAMES:
            codes = torch.randint(-127, 128, tensor.shape, generator=torch.manual_seed(1)).float()
            codes[:, ::32] = 127.0
            tensors[name] = codes * 2.0**-10  # Q8_0: 32 numbers share a float16 scale
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ConfigError, match="GGUF blocks, which are quantised already"):
        load(folder, quantization="fp8")


def test_the_form_of_a_folder_may_be_named(source, tmp_path):
    packers = forms.linear_by(forms.fp8_blocks)
    packed, config = tmp_path / "packed", {"quant_method": "fp8", "weight_block_size": [8, 8]}
    forms.write_packed(source, packers, config, packed, tmp_path / "plain")
    right = load(packed).generate(PROMPTS, GREEDY, use_tqdm=False)
    found = load(packed, quantization="fp8").generate(PROMPTS, GREEDY, use_tqdm=False)
    assert [each.outputs[0].logprobs for each in found] == [
        each.outputs[0].logprobs for each in right
    ]
    with pytest.raises(ConfigError, match=r"already \(fp8\), .* gptq says otherwise; use"):
        load(packed, quantization="gptq")


@pytest.mark.parametrize("name", ["awq", "awq_marlin"])
def test_names_of_kernels_stand_for_the_form(source, tmp_path, name):
    packer, config = FORMS["AWQ"]
    forms.write_packed(
        source, forms.linear_by(packer), config, tmp_path / "packed", tmp_path / "plain"
    )
    assert resolve_quantization(tmp_path / "packed", name) == "none"
    with pytest.raises(ConfigError, match=f"no weights in the form of --quantization {name}"):
        resolve_quantization(tmp_path / "plain", name)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"quantization": "int3"}, "unknown --quantization / quantization 'int3'; choose from"),
        ({"quantization": "fp8", "dtype": "int8"}, "quantise twice; keep one of them"),
    ],
)
def test_wrong_choices_are_refused(source, arguments, reason):
    with pytest.raises(ConfigError, match=reason):
        LLM(source, device="cpu", **arguments)
