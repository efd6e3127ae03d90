"""A linear layer in groups: each group has its own inputs, weight and outputs."""

from typing import Protocol

import torch

from outrider.config.engine_config import Arithmetic
from outrider.ops.linear.fixed_product import fixed_product
from outrider.ops.linear.linear import FixedLinear
from outrider.ops.linear.tiled_weight import tile_weight, why_no_tiles


class GroupedLinear(Protocol):
    """Every group of every row through its own weight."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...  # [n, groups, in] -> [n, groups * out]


class BatchedGroups:
    """One library call for all groups."""

    def __init__(self, weight: torch.Tensor) -> None:  # [groups, out, in]
        self._weight = weight.transpose(1, 2)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return fixed_product(x.transpose(0, 1), self._weight).transpose(0, 1).flatten(1)


class FixedGroups:
    """Our own kernel for each group: the bits of a row depend on that row alone."""

    def __init__(self, weight: torch.Tensor) -> None:  # [groups, out, in] on CUDA
        self._linears = tuple(FixedLinear(group) for group in weight)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([linear(x[:, group]) for group, linear in enumerate(self._linears)], dim=1)


class TiledGroupedLinear:
    """Compiled loops on a CPU: the bits of a row depend on that row alone."""

    def __init__(self, weight: torch.Tensor) -> None:  # [groups, out, in]
        self._weight = tile_weight(weight, weight.dtype)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        groups, _, size = self._weight.shape
        out = x.new_empty(len(x), groups, size)
        self._weight.multiply_parts(x.transpose(0, 1), out.transpose(0, 1))
        return out.flatten(1)


def make_grouped(weight: torch.Tensor, arithmetic: Arithmetic) -> GroupedLinear:
    """The form for the device of the weight, [groups, out, in]."""
    if weight.device.type == "cpu" and not why_no_tiles():
        return TiledGroupedLinear(weight)
    is_fixed = weight.is_cuda and arithmetic == "fixed"
    return FixedGroups(weight) if is_fixed else BatchedGroups(weight)
