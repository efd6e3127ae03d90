"""Integers of 2, 4 or 8 bits in words of 32 bits: compressed-tensors, GPTQ and AWQ."""

import math

import torch

from outrider.errors import ConfigError
from outrider.models.quantised.grouped_integers import (
    are_consecutive,
    codes_of_words,
    grouped_integers,
)
from outrider.models.quantised.packed_form import Parts, check_shape, two_axes
from outrider.models.quantised.quantisation import IntegerCodes
from outrider.models.quantised.unpack_bits import unpack_awq, unpack_words
from outrider.ops.linear.quantised_weight import QuantisedWeight, pack_nibbles

_WORD = 32  # bits
_USUAL_WIDTHS = (4, 8)  # bits of a number, where config.json does not say them


class GroupedWords:
    """compressed-tensors: integers in words along the inputs, a scale per group of inputs."""

    scales: tuple[str, ...] = ("weight_scale",)

    def __init__(self, stated: IntegerCodes) -> None:
        self._stated = stated

    def check(self, parts: Parts) -> None:
        rows, columns = self._checked_shape(parts["weight_shape"])
        words, packed = self._num_words(columns), parts["weight_packed"]
        why = f"weight_shape is {[rows, columns]}"
        if packed.ndim != 2 or packed.shape[0] != rows or packed.shape[1] not in words.values():
            by_width = " or ".join(f"{[rows, num]} ({bits} bits)" for bits, num in words.items())
            raise ConfigError(
                f"weight_packed has the shape {list(packed.shape)} instead of {by_width}: {why}"
            )
        _, num_groups = two_axes("weight_scale", parts["weight_scale"])
        check_shape("weight_scale", parts["weight_scale"], (rows, num_groups), why)
        _check_groups("weight_scale", num_groups, columns, self._stated)
        num_words = -(-rows // (_WORD // self._bits(parts)))
        if "weight_zero_point" in parts:
            found = parts["weight_zero_point"]
            check_shape("weight_zero_point", found, (num_words, num_groups), why)
        if "weight_g_idx" in parts:
            check_shape("weight_g_idx", parts["weight_g_idx"], (columns,), why)

    def shape(self, parts: Parts) -> tuple[int, int]:
        rows, columns = parts["weight_shape"].flatten().tolist()
        return rows, columns

    def quantised(self, parts: Parts) -> QuantisedWeight:
        (rows, columns), bits = self.shape(parts), self._bits(parts)
        codes = codes_of_words(parts["weight_packed"], bits, columns)
        zeros = torch.empty(0, rows, dtype=torch.int32)
        if "weight_zero_point" in parts:  # packed along the outputs
            stored = parts["weight_zero_point"].t().contiguous()
            zeros = unpack_words(stored, bits)[:, :rows]
        scales = parts["weight_scale"].t()
        order = _order("weight_g_idx", parts, columns=columns, num_groups=scales.shape[0])
        return grouped_integers(codes, columns, scales, zeros, bits=bits, order=order)

    def unit(self, parts: Parts, dim: int) -> int:
        (_, columns), per_word = self.shape(parts), _WORD // self._bits(parts)
        num_groups = parts["weight_scale"].shape[1]
        if _has_order(parts.get("weight_g_idx"), num_groups):
            return 0
        if dim:
            return _unit_of_columns(columns, num_groups, per_word)
        return per_word if "weight_zero_point" in parts else 1

    def narrow(self, parts: Parts, dim: int, first: int, num: int) -> Parts:
        (rows, columns), scale = self.shape(parts), parts["weight_scale"]
        per_word, found = _WORD // self._bits(parts), dict(parts)
        found.pop("weight_g_idx", None)  # it names consecutive groups: see `unit`
        num_words = -(-num // per_word)
        if dim:
            found["weight_packed"] = found["weight_packed"].narrow(1, first // per_word, num_words)
            groups = _groups_of(first, num, columns, scale.shape[1])
            for name in ("weight_scale", "weight_zero_point"):
                if name in found:
                    found[name] = found[name].narrow(1, *groups)
            sizes = [rows, num]
        else:
            for name in ("weight_packed", "weight_scale"):
                found[name] = found[name].narrow(0, first, num)
            if "weight_zero_point" in found:
                zeros = found["weight_zero_point"]
                found["weight_zero_point"] = zeros.narrow(0, first // per_word, num_words)
            sizes = [num, columns]
        return {**found, "weight_shape": torch.tensor(sizes)}

    def _checked_shape(self, stored: torch.Tensor) -> tuple[int, int]:
        sizes = stored.flatten().tolist()
        if len(sizes) != 2 or min(sizes) < 1:
            raise ConfigError(f"weight_shape is {sizes}, and two sizes are needed")
        return sizes[0], sizes[1]

    def _num_words(self, columns: int) -> dict[int, int]:
        """The words of a row, by the width of a number in bits."""
        return {bits: -(-columns // (_WORD // bits)) for bits in self._stated.bits or _USUAL_WIDTHS}

    def _bits(self, parts: Parts) -> int:
        """The stated width that the words of a row have; there may be several in a model."""
        _, columns = self.shape(parts)
        words = self._num_words(columns)
        return next(bits for bits in words if words[bits] == parts["weight_packed"].shape[1])


class GptqWords:
    """GPTQ: integers in words along the inputs, stored transposed."""

    scales: tuple[str, ...] = ("scales",)

    def __init__(self, stated: IntegerCodes) -> None:
        self._stated = stated
        (self._bits,) = stated.bits

    def check(self, parts: Parts) -> None:
        words, rows = two_axes("qweight", parts["qweight"])
        columns, per_word = words * (_WORD // self._bits), _WORD // self._bits
        why = f"qweight has the shape {[words, rows]}, of {self._bits} bits"
        num_groups, _ = two_axes("scales", parts["scales"])
        check_shape("scales", parts["scales"], (num_groups, rows), why)
        check_shape("qzeros", parts["qzeros"], (num_groups, -(-rows // per_word)), why)
        if "g_idx" in parts:
            check_shape("g_idx", parts["g_idx"], (columns,), why)
        _check_groups("scales", num_groups, columns, self._stated)

    def shape(self, parts: Parts) -> tuple[int, int]:
        words, rows = parts["qweight"].shape
        return rows, words * _WORD // self._bits

    def quantised(self, parts: Parts) -> QuantisedWeight:
        rows, columns = self.shape(parts)
        codes = codes_of_words(parts["qweight"].t(), self._bits, columns)
        zeros = unpack_words(parts["qzeros"], self._bits)[:, :rows] + self._stated.zero_offset
        middle = 2 ** (self._bits - 1)
        if self._stated.is_symmetric and bool((zeros != middle).any()):
            raise ConfigError(
                f"qzeros holds zero points besides {middle}, and config.json says sym; its "
                "checkpoint_format (gptq or gptq_v2) may be wrong"
            )
        scales = parts["scales"]  # [groups, out], as zeros
        order = _order("g_idx", parts, columns=columns, num_groups=scales.shape[0])
        return grouped_integers(codes, columns, scales, zeros, bits=self._bits, order=order)

    def unit(self, parts: Parts, dim: int) -> int:
        (_, columns), per_word = self.shape(parts), _WORD // self._bits
        num_groups = parts["scales"].shape[0]
        if not dim or _has_order(parts.get("g_idx"), num_groups):
            return per_word
        return _unit_of_columns(columns, num_groups, per_word)

    def narrow(self, parts: Parts, dim: int, first: int, num: int) -> Parts:
        (_, columns), per_word, found = self.shape(parts), _WORD // self._bits, dict(parts)
        words = (first // per_word, -(-num // per_word))
        if not dim:
            found["scales"] = found["scales"].narrow(1, first, num)
            found["qzeros"] = found["qzeros"].narrow(1, *words)
            found["qweight"] = found["qweight"].narrow(1, first, num)
            return found
        found["qweight"] = found["qweight"].narrow(0, *words)
        if _has_order(parts.get("g_idx"), found["scales"].shape[0]):
            found["g_idx"] = found["g_idx"].narrow(0, first, num)
            return found
        found.pop("g_idx", None)
        groups = _groups_of(first, num, columns, found["scales"].shape[0])
        for name in ("scales", "qzeros"):
            found[name] = found[name].narrow(0, *groups)
        return found


class AwqWords:
    """AWQ: 4-bit integers in words along the outputs, stored transposed."""

    scales: tuple[str, ...] = ("scales",)

    def __init__(self, stated: IntegerCodes) -> None:
        self._stated = stated

    def check(self, parts: Parts) -> None:
        columns, words = two_axes("qweight", parts["qweight"])
        num_groups, _ = two_axes("scales", parts["scales"])
        why = f"qweight has the shape {[columns, words]}"
        check_shape("scales", parts["scales"], (num_groups, 8 * words), why)
        check_shape("qzeros", parts["qzeros"], (num_groups, words), why)
        _check_groups("scales", num_groups, columns, self._stated)

    def shape(self, parts: Parts) -> tuple[int, int]:
        columns, words = parts["qweight"].shape
        return words * 8, columns

    def quantised(self, parts: Parts) -> QuantisedWeight:
        integers, zeros = unpack_awq(parts["qweight"]).t(), unpack_awq(parts["qzeros"]).int()
        codes, scales, (_, columns) = pack_nibbles(integers, 2), parts["scales"], self.shape(parts)
        order = _order("g_idx", parts, columns=columns, num_groups=scales.shape[0])
        return grouped_integers(codes, columns, scales, zeros, bits=4, order=order)

    def unit(self, parts: Parts, dim: int) -> int:
        columns, num_groups = self.shape(parts)[1], parts["scales"].shape[0]
        return _unit_of_columns(columns, num_groups, 1) if dim else 8

    def narrow(self, parts: Parts, dim: int, first: int, num: int) -> Parts:
        found = dict(parts)
        if not dim:
            found["scales"] = found["scales"].narrow(1, first, num)
            for name in ("qweight", "qzeros"):
                found[name] = found[name].narrow(1, first // 8, num // 8)
            return found
        groups = _groups_of(first, num, self.shape(parts)[1], found["scales"].shape[0])
        found["qweight"] = found["qweight"].narrow(0, first, num)
        for name in ("scales", "qzeros"):
            found[name] = found[name].narrow(0, *groups)
        return found


def _check_groups(suffix: str, num_groups: int, columns: int, stated: IntegerCodes) -> None:
    """Refuse a number of groups that the sizes in config.json do not give."""
    numbers = [1 if size < 1 else -(-columns // size) for size in stated.groups]
    if numbers and num_groups not in numbers:
        sizes = " or ".join(str(size) for size in stated.groups)
        raise ConfigError(
            f"{suffix} has {num_groups} groups of {columns} inputs instead of "
            f"{' or '.join(map(str, numbers))}: config.json says groups of {sizes}"
        )


def _unit_of_columns(columns: int, num_groups: int, per_word: int) -> int:
    """Where inputs in consecutive groups can be cut: at multiples of this; 0 if they cannot."""
    if num_groups == 1:
        return per_word
    return 0 if columns % num_groups else math.lcm(columns // num_groups, per_word)


def _groups_of(first: int, num: int, columns: int, num_groups: int) -> tuple[int, int]:
    """The first group of some inputs, and how many there are. A part of a group counts as one."""
    group = columns // num_groups
    return first // group, -(-num // group)


def _has_order(order: torch.Tensor | None, num_groups: int) -> bool:  # order [in]
    """Whether inputs name groups that are not consecutive.

    Exporters of GPTQ store the group of every input even where groups are consecutive.
    """
    if order is None or not bool((order >= 0).all()):
        return False
    return not are_consecutive(order, num_groups)


def _order(
    suffix: str, parts: Parts, *, columns: int, num_groups: int
) -> torch.Tensor | None:  # [in] int64
    """The group of every input; None for consecutive inputs."""
    order = parts.get(suffix)
    if order is None or not _has_order(order, num_groups):
        if columns % num_groups:
            raise ConfigError(
                f"{suffix} is missing or empty: {num_groups} groups do not divide {columns} inputs"
            )
        return None
    if int(order.max()) >= num_groups:
        raise ConfigError(f"{suffix} names groups that a weight with {num_groups} groups lacks")
    return order.long()
