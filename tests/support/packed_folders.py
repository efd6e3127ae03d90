"""Model folders whose linear weights are stored in a published quantised form.

Every packer follows the definition of its form, number by number, and shares no code with the
loader. It draws the stored numbers at random and returns what they stand for.
"""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
Packer = Callable[[int, int, np.random.Generator], tuple[Tensors, np.ndarray]]

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def fp8_blocks(rows, columns, rng, *, size=8, suffix="weight_scale_inv", is_power=False):
    codes = rng.integers(0, 0x7E, (rows, columns), dtype=np.uint8)
    codes |= rng.integers(0, 2, (rows, columns), dtype=np.uint8) << 7
    shape = (-(-rows // size), -(-columns // size))
    exponents = rng.integers(110, 118, shape)
    scales = 2.0 ** (exponents - 127) if is_power else rng.uniform(1e-5, 4e-4, shape)
    weight = torch.from_numpy(codes).view(torch.float8_e4m3fn)
    plain, values = weight.float().numpy(), np.empty((rows, columns), np.float32)
    for n in range(rows):
        for k in range(columns):
            values[n, k] = plain[n, k] * np.float32(scales[n // size, k // size])
    stored = torch.from_numpy(scales.astype(np.float32))
    if is_power:
        stored = torch.from_numpy(exponents.astype(np.uint8)).view(torch.float8_e8m0fnu)
    return {"weight": weight, suffix: stored}, values


def fp8_rows(rows, columns, rng):
    parts, _ = fp8_blocks(rows, columns, rng)
    scales = rng.uniform(1e-5, 4e-4, (rows, 1)).astype(np.float32)
    values = parts["weight"].float().numpy() * scales
    return {"weight": parts["weight"], "weight_scale": torch.from_numpy(scales)}, values


def fp8_tensor(rows, columns, rng):
    parts, _ = fp8_blocks(rows, columns, rng)
    scale = np.float32(rng.uniform(1e-5, 4e-4))
    tensors = {
        "weight": parts["weight"],
        "weight_scale": torch.tensor(scale),
        "input_scale": torch.tensor(0.5),
    }
    return tensors, parts["weight"].float().numpy() * scale


def mxfp8(rows, columns, rng):
    parts, _ = fp8_blocks(rows, columns, rng)
    codes = rng.integers(110, 118, (rows, -(-columns // 32))).astype(np.uint8)
    values = parts["weight"].float().numpy()
    for n in range(rows):
        for k in range(columns):
            values[n, k] *= np.float32(2.0 ** (int(codes[n, k // 32]) - 127))
    return {"weight": parts["weight"], "weight_scale": torch.from_numpy(codes)}, values


def int8_rows(rows, columns, rng):
    codes = rng.integers(-128, 128, (rows, columns)).astype(np.int8)
    scales = rng.uniform(1e-4, 1e-3, (rows, 1)).astype(np.float32)
    tensors = {"weight": torch.from_numpy(codes), "weight_scale": torch.from_numpy(scales)}
    return tensors, codes.astype(np.float32) * scales


def int8_rows_with_zeros(rows, columns, rng, *, is_one=False):
    parts, _ = int8_rows(rows, columns, rng)
    zeros = rng.integers(-128, 128, (1,) if is_one else (rows, 1)).astype(np.int8)
    codes, scales = parts["weight"].numpy(), parts["weight_scale"].numpy()
    tensors = parts | {
        "weight_zero_point": torch.from_numpy(zeros),
        "input_scale": torch.tensor([0.5]),
        "input_zero_point": torch.tensor([3], dtype=torch.int8),
    }
    return tensors, (codes.astype(np.float32) - zeros) * scales


def _word(numbers, bits):
    """The numbers of one int32 word, the first in the low bits."""
    word = sum(int(number) << (bits * place) for place, number in enumerate(numbers))
    return word - (1 << 32) if word >= 1 << 31 else word


def _groups(columns, group, rng, *, has_order, is_shared=False):
    """The group of every input. In published files it is that of all weights with these inputs."""
    if not has_order:
        return np.arange(columns) // group
    return (np.random.default_rng(columns) if is_shared else rng).permutation(columns) // group


def words_of_compressed_tensors(
    rows, columns, rng, *, bits=4, group=8, has_zeros=False, has_order=False
):
    per, group = 32 // bits, group or columns  # 0: a scale per row
    codes = rng.integers(0, 2**bits, (rows, columns))
    scales = rng.uniform(1e-3, 2e-2, (rows, columns // group)).astype(np.float32)
    zeros = rng.integers(0, 2**bits, (rows, columns // group))
    order = _groups(columns, group, rng, has_order=has_order)
    packed = [
        [_word(codes[n, k : k + per], bits) for k in range(0, columns, per)] for n in range(rows)
    ]
    tensors = {
        "weight_packed": torch.tensor(packed, dtype=torch.int32),
        "weight_scale": torch.from_numpy(scales),
        "weight_shape": torch.tensor([rows, columns]),
    }
    if has_zeros:
        packed = [
            [_word(zeros[n : n + per, g], bits) for g in range(columns // group)]
            for n in range(0, rows, per)
        ]
        tensors["weight_zero_point"] = torch.tensor(packed, dtype=torch.int32)
    if has_order:
        tensors["weight_g_idx"] = torch.tensor(order, dtype=torch.int32)
    values = np.empty((rows, columns), np.float32)
    for n in range(rows):
        for k in range(columns):
            zero = zeros[n, order[k]] if has_zeros else 2 ** (bits - 1)
            values[n, k] = np.float32(codes[n, k] - zero) * scales[n, order[k]]
    return tensors, values


def gptq(
    rows,
    columns,
    rng,
    *,
    version=1,
    group=8,
    has_order=True,
    is_shared=False,
    is_symmetric=False,
):
    group = group or columns  # 0: a scale per row
    codes = rng.integers(0, 16, (rows, columns))
    zeros = rng.integers(0, 16, (rows, columns // group))
    if is_symmetric:
        zeros[:] = 7 if version == 1 else 8
    scales = rng.uniform(1e-3, 2e-2, (rows, columns // group)).astype(np.float16)
    order = _groups(columns, group, rng, has_order=has_order, is_shared=is_shared)
    qweight = [[_word(codes[n, k : k + 8], 4) for n in range(rows)] for k in range(0, columns, 8)]
    qzeros = [
        [_word(zeros[n : n + 8, g], 4) for n in range(0, rows, 8)] for g in range(columns // group)
    ]
    values = np.empty((rows, columns), np.float32)
    for n in range(rows):
        for k in range(columns):
            zero = zeros[n, order[k]] + (1 if version == 1 else 0)
            values[n, k] = np.float32(codes[n, k] - zero) * np.float32(scales[n, order[k]])
    tensors = {
        "qweight": torch.tensor(qweight, dtype=torch.int32),
        "qzeros": torch.tensor(qzeros, dtype=torch.int32),
        "scales": torch.from_numpy(np.ascontiguousarray(scales.T)),
        "g_idx": torch.tensor(order, dtype=torch.int32),
    }
    return tensors, values


def awq(rows, columns, rng, *, group=8):
    places = (0, 2, 4, 6, 1, 3, 5, 7)  # the column that each nibble holds
    codes = rng.integers(0, 16, (rows, columns))
    zeros = rng.integers(0, 16, (rows, columns // group))
    scales = rng.uniform(1e-3, 2e-2, (rows, columns // group)).astype(np.float16)

    def packed(numbers):  # [rows] -> [rows / 8]
        return [_word([numbers[n + place] for place in places], 4) for n in range(0, rows, 8)]

    values = np.empty((rows, columns), np.float32)
    for n in range(rows):
        for k in range(columns):
            g = k // group
            values[n, k] = np.float32(codes[n, k] - zeros[n, g]) * np.float32(scales[n, g])
    tensors = {
        "qweight": torch.tensor([packed(codes[:, k]) for k in range(columns)], dtype=torch.int32),
        "qzeros": torch.tensor(
            [packed(zeros[:, g]) for g in range(columns // group)], dtype=torch.int32
        ),
        "scales": torch.from_numpy(np.ascontiguousarray(scales.T)),
    }
    return tensors, values


def _nibbles(rows, columns, rng):
    codes = rng.integers(0, 16, (rows, columns))
    packed = codes[:, 0::2] | (codes[:, 1::2] << 4)
    values = np.array(
        [[(-1.0 if code & 8 else 1.0) * E2M1[code & 7] for code in row] for row in codes],
        np.float32,
    )
    return torch.from_numpy(packed.astype(np.uint8)), values


def nvfp4(rows, columns, rng, *, is_modelopt=True):
    group = 16
    packed, values = _nibbles(rows, columns, rng)
    codes = rng.integers(8, 0x70, (rows, columns // group), dtype=np.uint8)
    scales = torch.from_numpy(codes).view(torch.float8_e4m3fn)
    whole = np.float32(1 / 1024) if is_modelopt else np.float32(1024)
    for n in range(rows):
        for k in range(columns):
            scale = np.float32(scales[n, k // group].float())
            values[n, k] *= scale * whole if is_modelopt else scale / whole
    if is_modelopt:
        names = ("weight", "weight_scale", "weight_scale_2", "input_scale")
    else:
        names = ("weight_packed", "weight_scale", "weight_global_scale", "input_global_scale")
    return dict(
        zip(names, (packed, scales, torch.tensor(whole), torch.tensor(1.0)), strict=True)
    ), values


def mxfp4(rows, columns, rng, *, is_v4=False, group=32):
    packed, values = _nibbles(rows, columns, rng)
    codes = rng.integers(118, 124, (rows, columns // group)).astype(np.uint8)
    for n in range(rows):
        for k in range(columns):
            values[n, k] *= np.float32(2.0 ** (int(codes[n, k // group]) - 127))
    scales = torch.from_numpy(codes)
    if is_v4:
        names, packed = ("weight", "scale"), packed.view(torch.int8)
        scales = scales.view(torch.float8_e8m0fnu)
    else:
        names = ("weight_packed", "weight_scale")
    return dict(zip(names, (packed, scales), strict=True)), values


def is_linear(name: str) -> bool:
    """Whether published folders quantise this tensor: the projections of decoder layers."""
    module = name.removesuffix(".weight").rpartition(".")[2]
    return ".layers." in name and "proj" in module and module != "in_proj_ba"


def linear_by(packer: Packer) -> Callable[[str], Packer | None]:
    """The packer of a tensor: this one for every linear layer of a decoder, else none."""
    return lambda name: packer if is_linear(name) and name.endswith(".weight") else None


def as_v4_is_published(name: str) -> Packer | None:
    """fp8 blocks for attention and shared experts, MXFP4 for the others."""
    if ".ffn.experts." in name:
        return partial(mxfp4, is_v4=True)
    is_fp8 = ".shared_experts." in name or name.endswith(
        (
            *("wq_a.weight", "wq_b.weight", "attn.wkv.weight", "wo_a.weight", "wo_b.weight"),
            "main_proj.weight",  # of a DSpark drafter
        )
    )
    return partial(fp8_blocks, suffix="scale", is_power=True) if is_fp8 else None


def write_packed(
    source: Path,
    packer_of: Callable[[str], Packer | None],
    quantization_config: dict,
    packed: Path,
    plain: Path,
) -> None:
    """Two folders of one model: some tensors packed, and the numbers they stand for."""
    rng = np.random.default_rng(7)
    ours, theirs = load_file(source / "model.safetensors"), {}
    values = dict(ours)
    for name, tensor in ours.items():
        module = name.removesuffix(".weight")
        packer = packer_of(name)
        if packer is None:
            theirs[name] = tensor
            continue
        parts, numbers = packer(*tensor.shape, rng)
        theirs |= {f"{module}.{suffix}": part for suffix, part in parts.items()}
        values[name] = torch.from_numpy(numbers)
    config = json.loads((source / "config.json").read_text())
    for folder, tensors, extra in (
        (packed, theirs, {"quantization_config": quantization_config}),
        (plain, values, {}),
    ):
        shutil.copytree(source, folder)
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(contiguous, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(config | extra))
