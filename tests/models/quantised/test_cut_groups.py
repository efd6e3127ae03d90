"""Ranks cut quantised weights between groups where they can, and keep their codes elsewhere too."""

import logging

import pytest
import torch

from outrider.models.quantised.quantisation import parse_quantisation
from outrider.models.quantised.read_cut import read_cut
from outrider.models.rank_share import columns_of, expert_columns_of
from outrider.models.safetensors_reader import Checkpoint
from outrider.models.tensor_cut import Cut
from outrider.ops.linear.any_weight import widened
from outrider.ops.linear.quantised_weight import QuantisedWeight
from tests.support import packed_folders as forms
from tests.support.packed_forms import (
    FORMS,
    awq_config,
    compressed,
    gptq_config,
    integers,
    packed_of,
)
from tests.support.spoken import tiny_llama

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}


@pytest.mark.fast_cases(99)
@pytest.mark.parametrize(
    ("config", "group"),
    [
        (None, 0),
        (FP8, 128),
        ({"quant_method": "mxfp4"}, 32),
        ({"quant_method": "fbgemm_fp8"}, 0),
        (gptq_config(group_size=128), 128),
        (gptq_config(group_size=-1), 0),
        (awq_config(64), 64),
        (integers(group=128), 128),
        (compressed("int-quantized", num_bits=8, type="int", strategy="channel"), 0),
        (NVFP4, 16),
        (NVFP4 | {"quant_algo": "FP8"}, 0),
        (NVFP4 | {"quant_algo": "FP8_PB_WO"}, 128),
    ],
)
def test_a_config_states_how_many_channels_share_a_scale(config, group):
    assert parse_quantisation(config).group == group


@pytest.mark.fast_cases(99)
@pytest.mark.parametrize(
    ("total", "size", "group", "shares"),
    [
        (18944, 8, 0, {2368}),  # Qwen2.5-7B
        (18944, 8, 128, {18 * 128, 19 * 128}),
        (13824, 8, 128, {13 * 128, 14 * 128}),  # Qwen2.5-14B
        (2880, 4, 32, {22 * 32, 23 * 32}),  # gpt-oss
        (768, 4, 128, {192}),  # Qwen3-30B-A3B: whole groups would give some ranks twice as many
        (768, 8, 128, {96}),
    ],
)
def test_ranks_get_whole_groups_if_none_gets_many_more(total, size, group, shares):
    for columns in (columns_of, expert_columns_of):
        found = [columns(total, rank, size, group=group) for rank in range(size)]
        assert (sum(found), set(found)) == (total, shares)


@pytest.mark.fast_cases(99)
@pytest.mark.parametrize(
    ("form", "cut", "group"),
    [
        ("fp8 blocks of 128, powers of two", (96, 192), 32),
        ("int8 groups of 96", (48, 192), 48),
        ("AWQ groups of 32", (16, 48), 16),
        ("NVFP4", (8, 40), 8),
    ],
)
def test_a_part_of_a_group_keeps_its_codes_with_a_scale_of_its_own(form, cut, group):
    found, parts, values = packed_of(form, 16, 192)
    cut = Cut(1, (cut,))
    part = read_cut(found, parts, cut)
    assert torch.equal(widened(part), cut.of(values))
    assert isinstance(part, QuantisedWeight)
    assert part.scales.group == group


def test_weights_that_ranks_must_widen_are_named_once(tmp_path, caplog):
    packer, config = FORMS["fp8 blocks"]
    tiny_llama(intermediate=64).save_pretrained(tmp_path / "source")
    packed = tmp_path / "packed"
    forms.write_packed(
        tmp_path / "source", forms.linear_by(packer), config, packed, tmp_path / "plain"
    )
    names = [f"model.layers.{layer}.mlp.down_proj.weight" for layer in (0, 1)]
    with caplog.at_level(logging.WARNING), Checkpoint(packed) as found:
        for name in names:
            found.read_weight(name, Cut(1, ((0, 32),)))
    assert not caplog.records
    with caplog.at_level(logging.WARNING), Checkpoint(packed) as found:
        for name in names:
            found.read_weight(name, Cut(1, ((0, 36),)))
    (record,) = caplog.records
    assert f"parts of 2 quantised weights ({names[0]}, ...) are widened" in record.message
