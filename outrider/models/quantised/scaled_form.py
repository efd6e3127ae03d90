"""fp8 or int8 numbers with one scale, and perhaps one zero point, per tensor, row or block."""

import torch

from outrider.models.quantised.grouped_integers import quantised_weight
from outrider.models.quantised.packed_form import Parts, check_shape, is_one, two_axes
from outrider.models.quantised.stored_kind import MX_GROUP
from outrider.ops.linear.quantised_weight import CodeKind, QuantisedWeight

ZEROS = "weight_zero_point"  # of int8, where it is not symmetric
MXFP8_BLOCK = (1, MX_GROUP)


class ScaledForm:
    """Numbers of one byte. Blocks are rows and columns that share a scale, () if none are known."""

    def __init__(
        self,
        scale: str,
        block: tuple[int, ...],
        *,
        has_blocks_only: bool = False,
        weight: str = "weight",
    ) -> None:
        self._weight = weight
        self._scale = scale
        self._block = block
        self._has_blocks_only = has_blocks_only  # a scale of a row or of all is refused

    @property
    def scales(self) -> tuple[str, ...]:
        return (self._scale,)

    def check(self, parts: Parts) -> None:
        rows, columns = two_axes(self._weight, parts[self._weight])
        scale, block = parts[self._scale], self._block
        if ZEROS in parts and not (is_one(parts[ZEROS]) or _is_per_row(parts[ZEROS], rows)):
            check_shape(ZEROS, parts[ZEROS], (rows, 1), f"{self._weight} has {rows} rows")
        if not self._has_blocks_only and (is_one(scale) or _is_per_row(scale, rows)):
            return
        what = f"{self._weight} has the shape {[rows, columns]}"
        if not block:
            check_shape(self._scale, scale, (rows, 1), f"{what}, and config.json names no blocks")
            return
        grid = _num_blocks((rows, columns), block)
        expected = (grid[0], 1, grid[1], 1) if scale.ndim == 4 else grid  # ModelOpt has four axes
        why = f"{what} in blocks of {block[0]} x {block[1]}"
        check_shape(self._scale, scale, expected, why)

    def shape(self, parts: Parts) -> tuple[int, int]:
        rows, columns = parts[self._weight].shape
        return rows, columns

    def quantised(self, parts: Parts) -> QuantisedWeight:
        weight, stored = parts[self._weight], _bytes(parts[self._scale])
        scales, group = self._rows_of_scales(stored, self.shape(parts))
        kind: CodeKind = "int8" if weight.dtype == torch.int8 else "e4m3"
        zeros = None
        if ZEROS in parts:
            zeros, _ = self._rows_of_scales(parts[ZEROS], self.shape(parts))
        return quantised_weight(kind, weight, scales, group=group, zeros=zeros)

    def unit(self, parts: Parts, dim: int) -> int:
        return 1 if self._is_simple(parts) else self._block[dim]

    def narrow(self, parts: Parts, dim: int, first: int, num: int) -> Parts:
        weight, scale = parts[self._weight], parts[self._scale]
        if not self._is_simple(parts):
            block = self._block[dim]
            axis = 2 * dim if scale.ndim == 4 else dim
            scale = scale.narrow(axis, first // block, -(-num // block))
        elif not dim and scale.numel() > 1:
            scale = scale.narrow(0, first, num)
        found = {self._weight: weight.narrow(dim, first, num), self._scale: scale}
        if ZEROS in parts:
            zeros = parts[ZEROS]
            found[ZEROS] = zeros if dim or is_one(zeros) else zeros.narrow(0, first, num)
        return found

    def _is_simple(self, parts: Parts) -> bool:
        """Whether a scale is that of a row or of all."""
        scale = parts[self._scale]
        return is_one(scale) or _is_per_row(scale, parts[self._weight].shape[0])

    def _rows_of_scales(
        self, scale: torch.Tensor, shape: tuple[int, int]
    ) -> tuple[torch.Tensor, int]:  # [groups, out], inputs of a group
        """The scales of every row, from one per tensor, row or block."""
        rows, columns = shape
        if is_one(scale):
            return scale.view(1, 1).expand(1, rows), columns
        if _is_per_row(scale, rows):
            return scale.view(1, rows), columns
        if scale.ndim == 4:  # ModelOpt: [row blocks, 1, column blocks, 1]
            scale = scale.flatten(2).flatten(0, 1)
        return scale.t().repeat_interleave(self._block[0], 1)[:, :rows], self._block[1]


def _is_per_row(scale: torch.Tensor, rows: int) -> bool:
    return tuple(scale.shape) in ((rows,), (rows, 1))


def _num_blocks(shape: tuple[int, int], block: tuple[int, ...]) -> tuple[int, int]:
    return -(-shape[0] // block[0]), -(-shape[1] // block[1])


def _bytes(scale: torch.Tensor) -> torch.Tensor:
    """A scale as it is kept: powers of two as the bytes of their exponents."""
    return scale.view(torch.uint8) if scale.dtype == torch.float8_e8m0fnu else scale
