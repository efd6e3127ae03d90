"""Quantised folders of families besides Llama, against transformers with the same numbers."""

import json
import shutil
from functools import cache, partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support import packed_folders as forms
from support.decoders import harness_of, prompt
from support.gpt_oss import write_gpt_oss
from support.packed_forms import FORMS, FP8, integers
from support.recurrent import harness_of as recurrent_harness
from support.recurrent import tiny_recurrent
from support.styled_families import LLAMA4
from support.thread_ranks import ThreadGroup
from support.tiny import LATENTS, SIZES, tiny_model
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Llama4ForCausalLM,
)

from outrider.errors import ConfigError
from outrider.models.decoder_loader import load_decoder
from outrider.models.model_config import read_config

TOLERANCE = 1e-4  # largest difference of any logit, in float32
TOKENS = prompt(21)
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def random_model(model):
    torch.manual_seed(3)
    model.config._attn_implementation = "eager"
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, 0.35)
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    return model.eval()


def deepseek():
    """Latents of the published size: 576 rows have 5 rows of scales, the last of half a block."""
    sizes = SIZES | LATENTS | {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_hidden_layers": 2}
    config = DeepseekV3Config(**sizes, q_lora_rank=16, n_group=4, topk_group=2)
    return random_model(DeepseekV3ForCausalLM(config))


FAMILIES = {
    "DeepSeek-V3, fp8 blocks of 128": (deepseek, partial(forms.fp8_blocks, size=128), BLOCKS),
    "Qwen3-MoE, fp8 blocks": (partial(tiny_model, "qwen3-moe"), forms.fp8_blocks, FP8),
    "Qwen3-MoE, int4": (
        partial(tiny_model, "qwen3-moe"),
        partial(forms.words_of_compressed_tensors, group=4),
        integers(group=4),
    ),
    "GLM-4.5, fp8 rows": (partial(tiny_model, "glm4-moe"), *FORMS["fp8 rows"]),
    "Qwen3-Next, fp8 blocks": (partial(tiny_recurrent, "qwen3-next"), forms.fp8_blocks, FP8),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Two folders of a family, by name: packed, and the numbers."""

    @cache
    def write(family):
        root = tmp_path_factory.mktemp("family")
        make, packer, config = FAMILIES[family]
        make().save_pretrained(root / "source")
        packers = forms.linear_by(packer)
        forms.write_packed(root / "source", packers, config, root / "packed", root / "plain")
        return root / "packed", root / "plain"

    return write


def expected_logits(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.inference_mode():
        return model(torch.tensor([TOKENS])).logits[0]


def logits_of(folder, family="", **changes):
    make = recurrent_harness if family.startswith("Qwen3-Next") else harness_of
    return make(folder, **changes).run({}, {1: (0, TOKENS)})


@pytest.mark.fast_cases(99)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers_with_the_same_numbers(written, family):
    packed, plain = written(family)
    stored = load_file(packed / "model.safetensors")
    assert (
        sum(tensor.element_size() < 4 or tensor.dtype == torch.int32 for tensor in stored.values())
        > 10
    )
    assert (logits_of(packed, family) - expected_logits(plain)).abs().max() <= TOLERANCE


def test_the_scales_of_deepseek_have_the_published_shapes(written):
    packed, _ = written("DeepSeek-V3, fp8 blocks of 128")
    stored = load_file(packed / "model.safetensors")
    layer = "model.layers.0.self_attn."
    assert stored[layer + "kv_a_proj_with_mqa.weight"].shape == (576, 32)
    assert stored[layer + "kv_a_proj_with_mqa.weight_scale_inv"].shape == (5, 1)
    assert stored[layer + "kv_b_proj.weight_scale_inv"].shape == (1, 4)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("family", [name for name in FAMILIES if "Next" not in name])
def test_two_ranks_compute_the_logits_of_one(written, family):
    packed, _ = written(family)
    alone, group = logits_of(packed), ThreadGroup(2)
    harnesses = group.run(lambda rank: harness_of(packed, ranks=group.ranks[rank]))
    found = group.run(lambda rank: harnesses[rank].run({}, {1: (0, TOKENS)}))
    for logits in found:
        assert (logits - alone).abs().max() <= TOLERANCE


# --- experts of a layer in one tensor


def fp8_stack(shape, *, is_down):
    """e4m3 numbers [experts, in, out] with a scale per output, as FBGEMM stores Llama-4."""
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 0x7E, shape, dtype=np.uint8) | (rng.integers(0, 2, shape) << 7)
    stored = torch.from_numpy(codes.astype(np.uint8)).view(torch.float8_e4m3fn)
    scales = torch.from_numpy(rng.uniform(1e-4, 9e-4, (shape[0], 1, shape[2])).astype(np.float32))
    values = stored.float() * scales
    return stored, scales.transpose(1, 2).contiguous() if is_down else scales, values


@pytest.fixture(scope="module")
def llama4(tmp_path_factory):
    root = tmp_path_factory.mktemp("llama4")
    random_model(Llama4ForCausalLM(LLAMA4)).save_pretrained(root / "plain")
    shutil.copytree(root / "plain", root / "packed")
    plain = load_file(root / "plain" / "model.safetensors")
    packed = dict(plain)
    for name in [each for each in plain if ".experts." in each]:
        packed[name], packed[name + "_scale"], plain[name] = fp8_stack(
            plain[name].shape, is_down=name.endswith("down_proj")
        )
    save_file(plain, root / "plain" / "model.safetensors")
    save_file(packed, root / "packed" / "model.safetensors")
    fields = json.loads((root / "plain" / "config.json").read_text())
    fields["quantization_config"] = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}
    (root / "packed" / "config.json").write_text(json.dumps(fields))
    return root / "packed", root / "plain"


def test_stacked_experts_of_fbgemm_are_read(llama4):
    packed, plain = llama4
    assert (logits_of(packed) - expected_logits(plain)).abs().max() <= TOLERANCE


STACK = "model.layers.1.feed_forward.experts.gate_up_proj"
STACK_FAULTS = {
    "no scales": (f"{STACK}_scale", lambda part: None, "gate_up_proj_scale .* is missing"),
    "fewer scales": (f"{STACK}_scale", lambda part: part[..., :-1], "instead of .6, 1, 96."),
    "integer scales": (f"{STACK}_scale", lambda part: part.int(), "stored as I32 instead of F32"),
    "scales that are NaN": (
        f"{STACK}_scale",
        lambda part: part * torch.nan,
        r"NaN or infinity in tensors \(1\): .*gate_up_proj_scale",
    ),
    "two axes": (STACK, lambda part: part[0], "gate_up_proj has the shape .32, 96., and"),
}


@pytest.mark.fast_cases(99)
@pytest.mark.parametrize("fault", STACK_FAULTS)
def test_damaged_stacks_are_refused_by_name(llama4, tmp_path, fault):
    name, change, reason = STACK_FAULTS[fault]
    folder = shutil.copytree(llama4[0], tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    changed = change(tensors.pop(name))
    if changed is not None:
        tensors[name] = changed.contiguous()
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ConfigError, match=reason):
        load_decoder(folder, dtype="float32", device=torch.device("cpu"))


BLOCKS_OF = "model.layers.1.mlp.experts.down_proj"
BLOCK_FAULTS = {
    "no scales": ("_scales", lambda part: None, "down_proj_scales .* is missing"),
    "no blocks": ("_blocks", lambda part: None, "down_proj_blocks .* is missing"),
    "longer blocks": (
        "_blocks",
        lambda part: part.repeat(1, 1, 1, 2),
        "down_proj_blocks has the shape .*, the last of them 16",
    ),
    "fewer scales": ("_scales", lambda part: part[:, :, 1:], "down_proj_scales has the shape"),
    "wide scales": ("_scales", lambda part: part.float(), "down_proj_scales is stored as F32"),
    "a scale that is NaN": (
        "_scales",
        lambda part: torch.full_like(part, 255),
        r"NaN or infinity in tensors \(1\): .*down_proj_scales",
    ),
}


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt-oss")
    write_gpt_oss(folder)
    return folder


@pytest.mark.fast_cases(99)
@pytest.mark.parametrize("fault", BLOCK_FAULTS)
def test_damaged_blocks_of_gpt_oss_are_refused_by_name(gpt_oss, tmp_path, fault):
    suffix, change, reason = BLOCK_FAULTS[fault]
    folder = shutil.copytree(gpt_oss / "packed", tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    changed = change(tensors.pop(BLOCKS_OF + suffix))
    if changed is not None:
        tensors[BLOCKS_OF + suffix] = changed.contiguous()
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ConfigError, match=reason):
        load_decoder(folder, dtype="float32", device=torch.device("cpu"))


# --- --quantization fp8 with experts in one tensor


def rounded(weight):  # [out, in]
    """The numbers of its e4m3 codes, with one scale per output; torch rounds as the format says."""
    scales = weight.abs().amax(-1, keepdim=True) / 448.0
    return (weight / scales).to(torch.float8_e4m3fn).float() * scales


ROUNDED = ("proj.weight", "in_proj_qkvz.weight", "experts.gate_up_proj", "experts.down_proj")
STACKED = {
    "qwen3-moe": (partial(tiny_model, "qwen3-moe"), False),
    "llama4": (lambda: random_model(Llama4ForCausalLM(LLAMA4)), True),
    "gpt-oss": (partial(tiny_model, "gpt-oss"), True),
    "qwen3-next": (partial(tiny_recurrent, "qwen3-next"), False),
}


@pytest.mark.fast_cases(99)
@pytest.mark.parametrize("family", STACKED)
def test_stacked_experts_are_quantised_at_load_with_a_scale_per_output(family, tmp_path):
    make, is_transposed = STACKED[family]
    make().save_pretrained(tmp_path / "source", save_original_format=False)
    tensors = load_file(tmp_path / "source" / "model.safetensors")
    assert any(name.endswith("experts.gate_up_proj") for name in tensors)
    for name, tensor in tensors.items():
        if name.endswith(ROUNDED):
            is_turned = is_transposed and tensor.ndim == 3
            out = rounded(tensor.transpose(1, 2) if is_turned else tensor)
            tensors[name] = (out.transpose(1, 2) if is_turned else out).contiguous()
    shutil.copytree(tmp_path / "source", tmp_path / "plain")
    save_file(tensors, tmp_path / "plain" / "model.safetensors")
    spoken = "Qwen3-Next" if family == "qwen3-next" else ""
    found = logits_of(tmp_path / "source", spoken, quantization="fp8")
    right = logits_of(tmp_path / "plain", spoken)
    assert (found - right).abs().max() <= TOLERANCE
    assert (found - logits_of(tmp_path / "source", spoken)).abs().max() > 100 * TOLERANCE


def test_deepseek_v3_2_is_refused_with_the_reason(tmp_path):
    fields = {"architectures": ["DeepseekV32ForCausalLM"], "index_topk": 2048}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ConfigError, match=r"DeepseekV32ForCausalLM .*sparse attention.*; use"):
        read_config(tmp_path)
