"""The weights of all experts of a layer: one dense tensor, or the codes of quantised ones."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from outrider.ops.linear.any_weight import AnyWeight, are_alike
from outrider.ops.linear.kernel_weight import KernelWeight, kernel_weight_in_place
from outrider.ops.linear.linear_storage import dtype_name
from outrider.ops.linear.quantised_weight import GroupScales, QuantisedWeight


@dataclass(frozen=True, slots=True)
class QuantisedExperts:
    """The rows of all experts, one after another."""

    weight: KernelWeight  # [experts * out, in]
    num: int

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes

    @property
    def shape(self) -> tuple[int, int, int]:  # experts, out, in
        rows, inputs = self.weight.shape
        return self.num, rows // self.num, inputs


ExpertStack = torch.Tensor | QuantisedExperts  # [experts, out, in]


def expert_storage(stack: ExpertStack) -> str:
    """In what form the weights are stored."""
    return dtype_name(stack.dtype) if isinstance(stack, torch.Tensor) else stack.weight.kind


def stack_codes(
    parts: Iterable[AnyWeight], shape: tuple[int, ...], device: torch.device
) -> QuantisedExperts | None:
    """Quantised weights with the rows of all experts, [experts, out, in], copied one at a time.

    None if one kernel cannot read them together: then experts are widened.
    """
    stack, filled = None, 0
    for part in parts:
        if not isinstance(part, QuantisedWeight) or len(part.order):
            return None
        piece = part.to(device)
        if stack is None:
            stack = _empty_like(piece, shape[0] * shape[1])
        if not _is_like(stack, piece):
            return None
        _copy_rows(piece, stack, filled)
        filled += piece.shape[0]
    return None if stack is None else QuantisedExperts(kernel_weight_in_place(stack), shape[0])


def _is_like(first: QuantisedWeight, other: QuantisedWeight) -> bool:
    """Whether both are of one kind and have the same parts."""
    ours, theirs = first.scales, other.scales
    has_same_zeros = len(ours.zeros) == len(theirs.zeros)
    has_same_factors = (len(ours.factors) > 0) == (len(theirs.factors) > 0)
    return are_alike(first, other) and has_same_zeros and has_same_factors


def _empty_like(weight: QuantisedWeight, rows: int) -> QuantisedWeight:
    scales = weight.scales
    groups = GroupScales(
        scales=scales.scales.new_empty(len(scales.scales), rows),
        zeros=scales.zeros.new_empty(len(scales.zeros), rows),
        factors=scales.factors.new_empty(rows if len(scales.factors) else 0),
        group=scales.group,
    )
    return replace(weight, codes=weight.codes.new_empty(rows, weight.codes.shape[1]), scales=groups)


def _copy_rows(piece: QuantisedWeight, stack: QuantisedWeight, first: int) -> None:
    rows, ours, theirs = slice(first, first + piece.shape[0]), stack.scales, piece.scales
    stack.codes[rows].copy_(piece.codes)
    ours.scales[:, rows].copy_(theirs.scales)
    ours.zeros[:, rows].copy_(theirs.zeros)
    if len(ours.factors):
        ours.factors[rows].copy_(theirs.factors)
