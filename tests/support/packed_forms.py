"""Every published form of a quantised weight, with the config.json that goes with it."""

from functools import partial

import numpy as np
import torch

from outrider.models.quantised.find_packed import find_packed
from outrider.models.quantised.nibble_form import NibbleForm
from outrider.models.quantised.quantisation import parse_quantisation
from support import packed_folders as forms

FP8 = {"quant_method": "fp8", "weight_block_size": [8, 8]}
COMPRESSED = {"quant_method": "compressed-tensors"}


def compressed(format, **weights):
    """config.json of compressed-tensors with one group."""
    group = {"targets": ["Linear"], "weights": weights}
    return COMPRESSED | {"format": format, "config_groups": {"group_0": group}}


def integers(*, bits=4, group=8, **weights):
    sizes = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": group}
    return compressed("pack-quantized", **sizes, **weights)


def gptq_config(**fields):
    return {"quant_method": "gptq", "bits": 4, "group_size": 8, "desc_act": True} | fields


def awq_config(group=8):
    return {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm"}


_FP8_FORMAT = "float-quantized"
_BLOCKS = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [8, 8]}
FORMS = {
    "fp8 blocks": (forms.fp8_blocks, FP8),
    "fp8 blocks, rows no multiple": (
        partial(forms.fp8_blocks, size=7),
        {"quant_method": "fp8", "weight_block_size": [7, 7]},
    ),
    "fp8 blocks of V4": (partial(forms.fp8_blocks, suffix="scale", is_power=True), FP8),
    "fp8 blocks of compressed-tensors": (
        partial(forms.fp8_blocks, suffix="weight_scale"),
        compressed(_FP8_FORMAT, **_BLOCKS),
    ),
    "fp8 rows": (forms.fp8_rows, {"quant_method": "fbgemm_fp8"}),
    "fp8 tensor": (forms.fp8_tensor, {"quant_method": "modelopt", "quant_algo": "FP8"}),
    "mxfp8": (forms.mxfp8, compressed("mxfp8-quantized", num_bits=8, type="float")),
    "int8 rows": (forms.int8_rows, compressed("int-quantized", num_bits=8, type="int")),
    "int8 rows, zeros": (
        forms.int8_rows_with_zeros,
        compressed("int-quantized", num_bits=8, type="int", strategy="channel", symmetric=False),
    ),
    "int8 rows, one zero": (
        partial(forms.int8_rows_with_zeros, is_one=True),
        compressed("int-quantized", num_bits=8, type="int", symmetric=False),
    ),
    "int4 groups": (forms.words_of_compressed_tensors, integers(symmetric=True)),
    "int4 groups, zeros, order": (
        partial(forms.words_of_compressed_tensors, has_zeros=True, has_order=True),
        integers(symmetric=False, actorder="group"),
    ),
    "int4 rows": (
        partial(forms.words_of_compressed_tensors, group=0),
        compressed("pack-quantized", num_bits=4, type="int", strategy="channel", symmetric=True),
    ),
    "int8 groups": (partial(forms.words_of_compressed_tensors, bits=8), integers(bits=8)),
    "GPTQ": (forms.gptq, gptq_config()),
    "GPTQ v2": (
        partial(forms.gptq, version=2, has_order=False),
        gptq_config(checkpoint_format="gptq_v2", desc_act=False),
    ),
    "GPTQ symmetric": (partial(forms.gptq, is_symmetric=True), gptq_config(sym=True)),
    "GPTQ rows": (
        partial(forms.gptq, group=0, has_order=False),
        gptq_config(group_size=-1, desc_act=False),
    ),
    "AWQ": (forms.awq, awq_config()),
    "NVFP4": (forms.nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "NVFP4 of compressed-tensors": (
        partial(forms.nvfp4, is_modelopt=False),
        compressed("nvfp4-pack-quantized", num_bits=4, type="float", group_size=16),
    ),
    "MXFP4": (
        forms.mxfp4,
        compressed("mxfp4-pack-quantized", num_bits=4, type="float", group_size=32),
    ),
    "MXFP4 of V4": (partial(forms.mxfp4, is_v4=True), FP8),
}

# With the blocks of published files: too large for the tiny model of the folders.
LARGE = {
    "fp8 blocks of 128, powers of two": (
        partial(forms.fp8_blocks, size=128, suffix="scale", is_power=True),
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
    ),
}

# No file has these groups; kernels that take any group read them.
SMALL_GROUP = 8
SMALL = {"MXFP4 in groups of 8": partial(forms.mxfp4, group=SMALL_GROUP)}

# Integers in groups of whole blocks, which a CPU keeps packed.
GROUPS = {
    "int4 groups of 32": (
        partial(forms.words_of_compressed_tensors, group=32),
        integers(group=32),
    ),
    "int4 groups of 64, zeros, order": (
        partial(forms.words_of_compressed_tensors, group=64, has_zeros=True, has_order=True),
        integers(group=64, symmetric=False, actorder="group"),
    ),
    "int8 groups of 96": (
        partial(forms.words_of_compressed_tensors, bits=8, group=96, has_zeros=True),
        integers(bits=8, group=96, symmetric=False),
    ),
    "int8 rows": FORMS["int8 rows"],
    "int8 rows, zeros": FORMS["int8 rows, zeros"],
    "GPTQ groups of 32": (
        partial(forms.gptq, group=32, is_shared=True),
        gptq_config(group_size=32),
    ),
    "AWQ groups of 32": (partial(forms.awq, group=32), awq_config(32)),
    "AWQ groups of 192": (partial(forms.awq, group=192), awq_config(192)),
}

_TYPES = {
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e8m0fnu: "F8_E8M0",
}


def packed_of(form, rows, columns, seed=1):
    """The form that the loader finds, its stored tensors, and the numbers they stand for."""
    if form in SMALL:
        parts, values = SMALL[form](rows, columns, np.random.default_rng(seed))
        found = NibbleForm("weight_packed", "weight_scale", group=SMALL_GROUP)
        return found, parts, torch.from_numpy(values)
    packer, config = (FORMS | LARGE | GROUPS)[form]
    parts, values = packer(rows, columns, np.random.default_rng(seed))
    found = find_packed(
        [f"m.{suffix}" for suffix in parts],
        lambda name: _TYPES.get(parts[name[2:]].dtype, "F32"),
        parse_quantisation(config),
    )
    found["m.weight"].form.check(parts)
    return found["m.weight"].form, parts, torch.from_numpy(values)


def quantised_of(form, rows, columns, *, device="cpu", seed=1):
    """A weight in this form, and the numbers it stands for."""
    found, parts, values = packed_of(form, rows, columns, seed)
    return found.quantised(parts).to(torch.device(device)), values
