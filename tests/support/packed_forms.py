"""Every published form of a quantised weight, with the config.json that goes with it."""

from functools import partial

import numpy as np
import torch

from outrider.models.quantised.find_packed import find_packed
from outrider.models.quantised.quantisation import parse_quantisation
from support import packed_folders as forms

FP8 = {"quant_method": "fp8", "weight_block_size": [8, 8]}
COMPRESSED = {"quant_method": "compressed-tensors", "config_groups": {}}
FORMS = {
    "fp8 blocks": (forms.fp8_blocks, FP8),
    "fp8 blocks, rows no multiple": (
        partial(forms.fp8_blocks, size=7),
        {"quant_method": "fp8", "weight_block_size": [7, 7]},
    ),
    "fp8 blocks of V4": (partial(forms.fp8_blocks, suffix="scale", is_power=True), FP8),
    "fp8 rows": (forms.fp8_rows, {"quant_method": "fbgemm_fp8"}),
    "fp8 tensor": (forms.fp8_tensor, {"quant_method": "modelopt"}),
    "mxfp8": (forms.mxfp8, COMPRESSED),
    "int8 rows": (forms.int8_rows, COMPRESSED),
    "int4 groups": (forms.words_of_compressed_tensors, COMPRESSED),
    "int4 groups, zeros, order": (
        partial(forms.words_of_compressed_tensors, has_zeros=True, has_order=True),
        COMPRESSED,
    ),
    "int8 groups": (
        partial(forms.words_of_compressed_tensors, bits=8),
        COMPRESSED | {"config_groups": {"group_0": {"weights": {"num_bits": 8}}}},
    ),
    "GPTQ": (forms.gptq, {"quant_method": "gptq", "bits": 4}),
    "GPTQ v2": (
        partial(forms.gptq, version=2, has_order=False),
        {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"},
    ),
    "AWQ": (forms.awq, {"quant_method": "awq", "bits": 4, "version": "gemm"}),
    "NVFP4": (forms.nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "NVFP4 of compressed-tensors": (partial(forms.nvfp4, is_modelopt=False), COMPRESSED),
    "MXFP4": (forms.mxfp4, COMPRESSED),
    "MXFP4 of V4": (partial(forms.mxfp4, is_v4=True), FP8),
}

# With the blocks and groups of published files: too large for the tiny model of the folders.
LARGE = {
    "fp8 blocks of 128, powers of two": (
        partial(forms.fp8_blocks, size=128, suffix="scale", is_power=True),
        {"quant_method": "fp8"},
    ),
    "MXFP4 in groups of 32": (partial(forms.mxfp4, group=32), COMPRESSED),
}

_TYPES = {
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int32: "I32",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e8m0fnu: "F8_E8M0",
}


def packed_of(form, rows, columns, seed=1):
    """The form that the loader finds, its stored tensors, and the numbers they stand for."""
    packer, config = (FORMS | LARGE)[form]
    parts, values = packer(rows, columns, np.random.default_rng(seed))
    found = find_packed(
        [f"m.{suffix}" for suffix in parts],
        lambda name: _TYPES.get(parts[name[2:]].dtype, "F32"),
        parse_quantisation(config),
    )
    return found["m"].form, parts, torch.from_numpy(values)


def quantised_of(form, rows, columns, *, device="cpu", seed=1):
    """A weight in this form, and the numbers it stands for."""
    found, parts, values = packed_of(form, rows, columns, seed)
    return found.quantised(parts).to(torch.device(device)), values
