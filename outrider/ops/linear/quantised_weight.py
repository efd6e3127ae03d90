"""A weight as a quantised checkpoint stores it: small codes, and the scales that widen them.

Every published form is brought to this one at load, without loss. Codes keep their stored size.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
import torch.nn.functional as F

CodeKind = Literal["e4m3", "int8", "int4", "e2m1"]

# e2m1: one sign bit, two of exponent, one of mantissa.
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
_E8M0_BIAS, _E8M0_NAN = 127, 255
_E4M3_NAN = 0x7F  # without its sign
LEAST_GROUP = 8  # inputs: smaller groups have more bytes of scales than of codes
INT4_MIDDLE = 8  # the zero point of int4 codes that have none of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupScales:
    """One scale per output and group of neighbouring inputs.

    Outputs are the last axis, because a kernel reads the scales of neighbouring outputs together.
    Scales have their stored type: a float, e4m3, or uint8 for powers of two (e8m0).
    """

    scales: torch.Tensor  # [groups, out]
    # [groups, out] zero points, integers or float32; [0, out] if codes have none
    zeros: torch.Tensor
    factors: torch.Tensor  # [out] float32, also multiplied by; [0] if there are none
    group: int  # inputs that share a scale; the last group may have fewer

    @property
    def has_float_zeros(self) -> bool:
        """Whether zero points are not codes, as where blocks have minima (GGUF)."""
        return self.zeros.is_floating_point() and len(self.zeros) > 0

    @property
    def are_per_row(self) -> bool:
        """Whether all inputs of an output share a scale."""
        return len(self.scales) == 1

    def of_inputs(self, first: int, end: int, *, inputs: int) -> Self | None:
        """Those of some of the inputs; None where kernels would not take the groups.

        A group that is parted becomes several smaller ones with the same scale.
        """
        if self.are_per_row:
            return replace(self, group=max(end - first, 1))
        group = math.gcd(self.group, first, end if end < inputs else 0)
        if group < min(LEAST_GROUP, self.group):
            return None
        groups, times = slice(first // group, -(-end // group)), self.group // group
        scales, zeros = (_repeated(each, times)[groups] for each in (self.scales, self.zeros))
        return replace(self, scales=scales, zeros=zeros, group=group)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedWeight:
    """weight[n, k] = (code[n, k] - zero[g, n]) * (scale[g, n] * factor[n]) with g = k // group.

    Two codes of 4 bits share a byte. Byte i of a block of inputs holds input i in its low bits and
    input i + block / 2 in its high bits. Files have blocks of 2: neighbours share a byte.
    """

    kind: CodeKind
    codes: torch.Tensor  # [out, in] float8_e4m3fn or int8; [out, bytes] uint8 for 4 bits
    scales: GroupScales
    inputs: int
    block: int  # inputs; 1 for codes of 8 bits
    order: torch.Tensor  # [in] int64, the input that each code belongs to; [0] if it is its own

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.inputs

    @property
    def device(self) -> torch.device:
        return self.codes.device

    @property
    def has_nibbles(self) -> bool:
        return self.kind in ("int4", "e2m1")

    def to(self, device: torch.device) -> Self:
        """On a device, without gaps between rows, as kernels read it."""
        moved = self._by_row(lambda tensor, _: tensor.to(device).contiguous())
        return replace(moved, order=self.order.to(device))

    def rows(self, places: torch.Tensor) -> Self:  # [n] int64
        """Some outputs, in this order."""

        def picked(tensor: torch.Tensor, dim: int) -> torch.Tensor:
            if tensor.element_size() > 1:
                return tensor.index_select(dim, places)
            # As bytes: not every version of torch selects among float8 on every device.
            return tensor.view(torch.uint8).index_select(dim, places).view(tensor.dtype)

        return self._by_row(picked)

    def narrow(self, dim: int, first: int, num: int) -> Self | None:
        """Some outputs, or some inputs; None where inputs cannot be cut between codes."""
        if dim == 0:
            return self._by_row(lambda tensor, axis: tensor.narrow(axis, first, num))
        if (first, num) == (0, self.inputs):
            return self
        end = first + num
        is_between = first % self.block == 0 and (end == self.inputs or end % self.block == 0)
        scales = self.scales.of_inputs(first, end, inputs=self.inputs)
        if len(self.order) or not is_between or scales is None:
            return None
        blocks, wide = slice(first // self.block, -(-end // self.block)), -(-self.block // 2)
        return replace(
            self,
            codes=self.codes[:, blocks.start * wide : blocks.stop * wide],
            scales=scales,
            inputs=num,
        )

    def widen(self) -> torch.Tensor:  # [out, in] float32
        """The numbers that the codes stand for, in the order of the inputs."""
        widened = self.widen_in_order()
        if not len(self.order):
            return widened
        return torch.empty_like(widened).index_copy_(1, self.order, widened)

    def widen_in_order(self) -> torch.Tensor:  # [out, in] float32
        """The same, in the order of the codes."""
        scales, numbers = self.scales, self._code_values()
        if self.kind == "int4" and not len(scales.zeros):
            numbers -= INT4_MIDDLE
        if len(scales.zeros):
            self._in_groups(torch.Tensor.sub_, numbers, scales.zeros.float())
        steps = widen_scales(scales.scales)
        if len(scales.factors):
            steps = steps * scales.factors
        self._in_groups(torch.Tensor.mul_, numbers, steps)
        return numbers

    def _code_values(self) -> torch.Tensor:  # [out, in] float32; those of int4 from 0 to 15
        if not self.has_nibbles:
            return self.codes.float()
        nibbles = unpack_nibbles(self.codes, self.block)[:, : self.inputs]
        if self.kind == "int4":
            return nibbles.float()
        return torch.tensor(_E2M1, device=self.codes.device)[nibbles.int()]

    def is_finite(self) -> bool:
        """Whether all codes and scales are numbers."""
        steps = widen_scales(self.scales.scales)
        others = self.scales.factors, self.scales.zeros
        if not all(bool(each.isfinite().all()) for each in (steps, *others)):
            return False
        if self.kind != "e4m3":
            return True
        return not bool(((self.codes.view(torch.uint8) & _E4M3_NAN) == _E4M3_NAN).any())

    def _in_groups(
        self,
        change_: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        numbers: torch.Tensor,  # [out, in]
        values: torch.Tensor,  # [groups, out]
    ) -> None:
        """Change the numbers of every group by its value, in place: models fill the memory."""
        group = self.scales.group
        whole = self.inputs // group
        groups = numbers[:, : whole * group].view(len(numbers), whole, group)
        change_(groups, values[:whole].t()[..., None])
        if self.inputs % group:
            change_(numbers[:, whole * group :], values[whole:].t())

    def _by_row(self, pick: Callable[[torch.Tensor, int], torch.Tensor]) -> Self:
        """What `pick` makes of every tensor and its axis of outputs."""
        scales = self.scales
        return replace(
            self,
            codes=pick(self.codes, 0),
            scales=replace(
                scales,
                scales=pick(scales.scales, 1),
                zeros=pick(scales.zeros, 1),
                factors=pick(scales.factors, 0) if len(scales.factors) else scales.factors,
            ),
        )


def widen_scales(stored: torch.Tensor) -> torch.Tensor:
    """Scales as float32. uint8 are powers of two, of which the largest code is NaN."""
    if stored.dtype != torch.uint8:
        return stored.float()
    codes = stored.int()
    powers = torch.ldexp(torch.ones(codes.shape, device=codes.device), codes - _E8M0_BIAS)
    return torch.where(codes == _E8M0_NAN, torch.nan, powers)


def _repeated(values: torch.Tensor, times: int) -> torch.Tensor:  # [n, out] -> [n * times, out]
    return values[:, None].expand(-1, times, -1).flatten(0, 1) if times > 1 else values


def pack_nibbles(codes: torch.Tensor, block: int) -> torch.Tensor:  # [out, in] -> [out, bytes]
    """Integers from 0 to 15, two in a byte, in blocks of so many inputs."""
    padded = F.pad(codes, (0, -codes.shape[1] % block)).to(torch.uint8)
    rows, columns = padded.shape
    low, high = padded.reshape(rows, columns // block, 2, block // 2).unbind(2)
    return (low | (high << 4)).flatten(1)


def unpack_nibbles(stored: torch.Tensor, block: int) -> torch.Tensor:  # [out, bytes] -> [out, in]
    """The integers of these bytes, padding included."""
    (rows, columns), half = stored.shape, block // 2
    halves = stored.reshape(rows, columns // half, 1, half)
    return torch.cat([halves & 15, halves >> 4], dim=2).flatten(1)
