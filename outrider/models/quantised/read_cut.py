"""A part of a quantised weight, without converting the rest of it."""

import torch

from outrider.models.quantised.packed_form import PackedForm, Parts
from outrider.models.tensor_cut import Cut
from outrider.ops.linear.any_weight import AnyWeight, stack_weights, widened


def read_cut(form: PackedForm, parts: Parts, cut: Cut) -> AnyWeight:
    """That part as it is stored; dense where the cut does not lie between codes and groups."""
    if not cut.ranges:
        return form.quantised(parts)
    pieces = [_piece(form, parts, cut.dim, first, last) for first, last in cut.ranges]
    if cut.dim == 0 or len(pieces) == 1:
        return stack_weights(pieces)
    return torch.cat([widened(piece) for piece in pieces], 1)


def _piece(form: PackedForm, parts: Parts, dim: int, first: int, last: int) -> AnyWeight:
    """Converts from the unit that holds the first row or column to the end of that of the last."""
    size, unit = form.shape(parts)[dim], form.unit(parts, dim)
    start, end = 0, size
    if unit:  # otherwise the whole weight
        start = first // unit * unit
        end = min(max(-(-last // unit) * unit, start + unit), size)
        parts = form.narrow(parts, dim, start, end - start)
    quantised = form.quantised(parts)
    part = quantised.narrow(dim, first - start, last - first)
    return quantised.widen().narrow(dim, first - start, last - first) if part is None else part
