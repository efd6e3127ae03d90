"""The product of every row with the weight of its expert. Rows of an expert are neighbours."""

from typing import Protocol

import torch

from outrider.ops.linear.product_rows import ROW_GROUP
from outrider.ops.linear.tiled_weight import tile_weight, why_no_tiles


class GroupProduct(Protocol):
    """Owns the weights of one projection of all experts."""

    row_group: int  # the rows of every expert begin at a multiple of it

    def __call__(
        self,
        x: torch.Tensor,  # [n, in] sorted by expert
        ends: torch.Tensor,  # [experts] int32 where the rows of each expert end
    ) -> torch.Tensor:  # [n, out]; arbitrary for rows behind the last end
        ...


class LibraryGroups:
    """The grouped product of torch, on any device."""

    row_group = ROW_GROUP

    def __init__(self, weight: torch.Tensor) -> None:  # [experts, out, in]
        self._weight = weight.transpose(1, 2)
        self._multiply = torch.ops.aten._grouped_mm.default

    def __call__(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self._multiply(x, self._weight, ends)
        return out


class TiledGroups:
    """Compiled loops on a CPU. Activations are float32; the weight can have 2 bytes per number."""

    row_group = 1

    def __init__(self, weight: torch.Tensor) -> None:  # [experts, out, in]
        self._weight = tile_weight(weight, weight.dtype)

    def __call__(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(len(x), self._weight.shape[2])
        self._weight.multiply_groups(x, out, ends)
        return out


def make_group_product(weight: torch.Tensor) -> GroupProduct:  # [experts, out, in]
    """The form for the device of the weight."""
    return TiledGroups(weight) if takes_tiles(weight) else LibraryGroups(weight)


def takes_tiles(weight: torch.Tensor) -> bool:
    """Whether compiled loops multiply by this weight."""
    return weight.device.type == "cpu" and not why_no_tiles()
