"""One class per form in which a quantised weight is stored. Each gives its shape and its codes.

`parts` are the stored tensors of one module by suffix. A rank that reads a part of a weight narrows
these tensors first, in whole blocks, words and groups.
"""

import math
from collections.abc import Mapping
from typing import Protocol

import torch

from outrider.errors import ConfigError
from outrider.models.quantised.grouped_integers import (
    codes_of_words,
    grouped_integers,
    quantised_weight,
)
from outrider.models.quantised.quantisation import Quantisation
from outrider.models.quantised.unpack_bits import unpack_awq, unpack_words
from outrider.ops.linear.quantised_weight import CodeKind, QuantisedWeight, pack_nibbles

Parts = Mapping[str, torch.Tensor]  # by suffix, such as weight_scale
_MXFP8_BLOCK = (1, 32)
_WORD = 32  # bits


class PackedForm(Protocol):
    """A form of storing a weight [out, in]."""

    def shape(self, parts: Parts) -> tuple[int, ...]: ...

    def quantised(self, parts: Parts) -> QuantisedWeight: ...  # [out, in]

    def unit(self, parts: Parts, dim: int) -> int:
        """Where the weight can be cut: at multiples of this; 0 if it cannot, or is damaged."""
        ...

    def narrow(self, parts: Parts, dim: int, first: int, num: int) -> Parts:
        """The parts of some rows or columns, from a multiple of `unit` on."""
        ...


class ScaledForm:
    """fp8 or int8 numbers with one scale per tensor, row or block."""

    def __init__(self, scale: str, quantisation: Quantisation) -> None:
        self._scale = scale
        self._block = quantisation.block

    def shape(self, parts: Parts) -> tuple[int, ...]:
        return _two_axes(parts["weight"])

    def quantised(self, parts: Parts) -> QuantisedWeight:
        weight, stored = parts["weight"], parts[self._scale]
        scales, group = rows_of_scales(_bytes(stored), _two_axes(weight), self._block_of(stored))
        kind: CodeKind = "int8" if weight.dtype == torch.int8 else "e4m3"
        return quantised_weight(kind, weight, scales, group=group)

    def unit(self, parts: Parts, dim: int) -> int:
        weight, scale = parts["weight"], parts[self._scale]
        if scale.numel() == 1 or _is_per_row(scale, weight.shape[0]):
            return 1
        block = self._block_of(scale)
        return block[dim] if _grid(scale) == _num_blocks(weight, block) else 0

    def narrow(self, parts: Parts, dim: int, first: int, num: int) -> Parts:
        weight, scale = parts["weight"], parts[self._scale]
        if _is_per_row(scale, weight.shape[0]) and scale.numel() > 1:
            scale = scale if dim else scale.narrow(0, first, num)
        elif scale.numel() > 1:
            block = self._block_of(scale)[dim]
            axis = 2 * dim if scale.ndim == 4 else dim
            scale = scale.narrow(axis, first // block, -(-num // block))
        return {"weight": weight.narrow(dim, first, num), self._scale: scale}

    def _block_of(self, scale: torch.Tensor) -> tuple[int, int]:
        return _MXFP8_BLOCK if scale.dtype == torch.uint8 else self._block


def _is_per_row(scale: torch.Tensor, rows: int) -> bool:
    return scale.ndim > 0 and scale.numel() == rows == scale.shape[0]


def _grid(scale: torch.Tensor) -> tuple[int, ...]:
    """Blocks along both axes; ModelOpt stores [row blocks, 1, column blocks, 1]."""
    return tuple(scale.shape[::2]) if scale.ndim == 4 else tuple(scale.shape)


def _num_blocks(weight: torch.Tensor, block: tuple[int, int]) -> tuple[int, ...]:
    rows, columns = weight.shape
    return -(-rows // block[0]), -(-columns // block[1])


def rows_of_scales(
    scale: torch.Tensor, shape: tuple[int, int], block: tuple[int, int]
) -> tuple[torch.Tensor, int]:  # [groups, out], inputs of a group
    """The scales of every row, from one per tensor, row or block."""
    rows, columns = shape
    if scale.numel() == 1:
        return scale.view(1, 1).expand(1, rows), columns
    if _is_per_row(scale, rows):
        return scale.view(1, rows), columns
    if scale.ndim == 4:  # ModelOpt: [row blocks, 1, column blocks, 1]
        scale = scale.flatten(2).flatten(0, 1)
    expected = (-(-rows // block[0]), -(-columns // block[1]))
    if tuple(scale.shape) != expected:
        raise ConfigError(
            f"a scale of {list(scale.shape)} does not fit a weight of {list(shape)} in blocks of "
            f"{block[0]} x {block[1]}"
        )
    return scale.t().repeat_interleave(block[0], 1)[:, :rows], block[1]


class NibbleForm:
    """e2m1 numbers, two per byte, with a scale per group of inputs and perhaps one for all."""

    def __init__(self, weight: str, scale: str, other: str = "", *, is_inverse: bool = False):
        self._weight = weight
        self._scale = scale
        self._other = other
        self._is_inverse = is_inverse

    def shape(self, parts: Parts) -> tuple[int, ...]:
        rows, columns = _two_axes(parts[self._weight])
        return rows, 2 * columns

    def quantised(self, parts: Parts) -> QuantisedWeight:
        codes, scale = parts[self._weight].view(torch.uint8), _bytes(parts[self._scale])
        rows, columns = self.shape(parts)
        if scale.ndim != 2 or scale.shape[0] != rows or columns % scale.shape[1]:
            raise ConfigError(
                f"a scale of {list(scale.shape)} does not fit a weight of {[rows, columns]}"
            )
        factors = torch.empty(0)
        if self._other:
            factor = parts[self._other].float().view(1)
            factors = (1 / factor if self._is_inverse else factor).expand(rows)
        group = columns // scale.shape[1]
        return quantised_weight("e2m1", codes, scale.t(), group=group, factors=factors)

    def unit(self, parts: Parts, dim: int) -> int:
        (rows, columns), scale = self.shape(parts), parts[self._scale]
        if scale.ndim != 2 or scale.shape[0] != rows or columns % scale.shape[1]:
            return 0
        group = columns // scale.shape[1]
        return group + group % 2 * group if dim else 1  # whole bytes

    def narrow(self, parts: Parts, dim: int, first: int, num: int) -> Parts:
        weight, scale = parts[self._weight], parts[self._scale]
        if dim:
            group = 2 * weight.shape[1] // scale.shape[1]
            weight = weight.narrow(1, first // 2, num // 2)
            scale = scale.narrow(1, first // group, num // group)
        else:
            weight, scale = weight.narrow(0, first, num), scale.narrow(0, first, num)
        return {**parts, self._weight: weight, self._scale: scale}


class GroupedWords:
    """compressed-tensors: integers in words along the inputs, a scale per group of inputs."""

    def __init__(self, quantisation: Quantisation) -> None:
        self._bits = quantisation.bits

    def shape(self, parts: Parts) -> tuple[int, ...]:
        sizes = tuple(int(size) for size in parts["weight_shape"].flatten().tolist())
        if len(sizes) != 2:
            raise ConfigError(f"weight_shape has {len(sizes)} sizes, and a weight has 2")
        return sizes

    def quantised(self, parts: Parts) -> QuantisedWeight:
        rows, columns = self.shape(parts)
        codes = codes_of_words(parts["weight_packed"], self._bits, columns)
        zeros = torch.empty(0, rows, dtype=torch.int32)
        if "weight_zero_point" in parts:  # packed along the outputs
            stored = parts["weight_zero_point"].t().contiguous()
            zeros = unpack_words(stored, self._bits)[:, :rows]
        scales, order = parts["weight_scale"].t(), parts.get("weight_g_idx")
        return grouped_integers(codes, columns, scales, zeros, bits=self._bits, order=order)

    def unit(self, parts: Parts, dim: int) -> int:
        (rows, columns), scale = self.shape(parts), parts["weight_scale"]
        per_word = _WORD // self._bits
        if scale.ndim != 2 or scale.shape[0] != rows or "weight_g_idx" in parts:
            return 0
        if dim:
            return 0 if columns % scale.shape[1] else math.lcm(columns // scale.shape[1], per_word)
        return per_word if "weight_zero_point" in parts else 1

    def narrow(self, parts: Parts, dim: int, first: int, num: int) -> Parts:
        (rows, columns), scale = self.shape(parts), parts["weight_scale"]
        per_word, found = _WORD // self._bits, dict(parts)
        num_words, group = -(-num // per_word), columns // scale.shape[1]
        if dim:
            found["weight_packed"] = found["weight_packed"].narrow(1, first // per_word, num_words)
            groups = (1, first // group, num // group)
            for name in ("weight_scale", "weight_zero_point"):
                if name in found:
                    found[name] = found[name].narrow(*groups)
            sizes = [rows, num]
        else:
            for name in ("weight_packed", "weight_scale"):
                found[name] = found[name].narrow(0, first, num)
            if "weight_zero_point" in found:
                zeros = found["weight_zero_point"]
                found["weight_zero_point"] = zeros.narrow(0, first // per_word, num_words)
            sizes = [num, columns]
        return {**found, "weight_shape": torch.tensor(sizes)}


class GptqWords:
    """GPTQ: integers in words along the inputs, stored transposed."""

    def __init__(self, quantisation: Quantisation) -> None:
        self._bits = quantisation.bits
        self._zero_offset = quantisation.zero_offset

    def shape(self, parts: Parts) -> tuple[int, ...]:
        words, rows = _two_axes(parts["qweight"])
        return rows, words * 32 // self._bits

    def quantised(self, parts: Parts) -> QuantisedWeight:
        _, columns = self.shape(parts)
        codes = codes_of_words(parts["qweight"].t(), self._bits, columns)
        zeros = unpack_words(parts["qzeros"], self._bits) + self._zero_offset  # [groups, out]
        scales, order = parts["scales"], parts.get("g_idx")
        return grouped_integers(codes, columns, scales, zeros, bits=self._bits, order=order)

    def unit(self, parts: Parts, dim: int) -> int:
        (_, columns), per_word = self.shape(parts), _WORD // self._bits
        num_groups = parts["scales"].shape[0]
        if not dim or _has_order(parts.get("g_idx"), columns):
            return per_word
        return 0 if columns % num_groups else math.lcm(columns // num_groups, per_word)

    def narrow(self, parts: Parts, dim: int, first: int, num: int) -> Parts:
        (_, columns), per_word, found = self.shape(parts), _WORD // self._bits, dict(parts)
        words = (first // per_word, -(-num // per_word))
        if not dim:
            found["scales"] = found["scales"].narrow(1, first, num)
            found["qzeros"] = found["qzeros"].narrow(1, *words)
            found["qweight"] = found["qweight"].narrow(1, first, num)
            return found
        found["qweight"] = found["qweight"].narrow(0, *words)
        if _has_order(parts.get("g_idx"), columns):
            found["g_idx"] = found["g_idx"].narrow(0, first, num)
            return found
        found.pop("g_idx", None)
        group = columns // found["scales"].shape[0]
        for name in ("scales", "qzeros"):
            found[name] = found[name].narrow(0, first // group, num // group)
        return found


class AwqWords:
    """AWQ: 4-bit integers in words along the outputs, stored transposed."""

    def shape(self, parts: Parts) -> tuple[int, ...]:
        columns, words = _two_axes(parts["qweight"])
        return words * 8, columns

    def quantised(self, parts: Parts) -> QuantisedWeight:
        integers, zeros = unpack_awq(parts["qweight"]).t(), unpack_awq(parts["qzeros"]).int()
        codes, (_, columns) = pack_nibbles(integers, 2), self.shape(parts)
        return grouped_integers(codes, columns, parts["scales"], zeros, bits=4, order=None)

    def unit(self, parts: Parts, dim: int) -> int:
        _, columns = self.shape(parts)
        num_groups = parts["scales"].shape[0]
        return 8 if not dim else 0 if columns % num_groups else columns // num_groups

    def narrow(self, parts: Parts, dim: int, first: int, num: int) -> Parts:
        found = dict(parts)
        if not dim:
            found["scales"] = found["scales"].narrow(1, first, num)
            for name in ("qweight", "qzeros"):
                found[name] = found[name].narrow(1, first // 8, num // 8)
            return found
        group = self.shape(parts)[1] // found["scales"].shape[0]
        found["qweight"] = found["qweight"].narrow(0, first, num)
        for name in ("scales", "qzeros"):
            found[name] = found[name].narrow(0, first // group, num // group)
        return found


def _two_axes(stored: torch.Tensor) -> tuple[int, int]:
    if stored.ndim != 2:
        raise ConfigError(f"a quantised weight has two axes, and this one {list(stored.shape)}")
    return stored.shape[0], stored.shape[1]


def _has_order(order: torch.Tensor | None, columns: int) -> bool:
    """Whether every input names its group."""
    return order is not None and order.shape[0] == columns and bool((order >= 0).all())


def _bytes(scale: torch.Tensor) -> torch.Tensor:
    """A scale as it is kept: powers of two as the bytes of their exponents."""
    return scale.view(torch.uint8) if scale.dtype == torch.float8_e8m0fnu else scale
