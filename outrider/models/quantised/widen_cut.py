"""A part of a quantised weight, without widening the rest of it."""

import torch

from outrider.models.quantised.packed_weights import PackedForm, Parts
from outrider.models.tensor_cut import Cut


def widen_cut(form: PackedForm, parts: Parts, cut: Cut) -> torch.Tensor:
    """The same numbers as those of the whole weight, cut afterwards."""
    unit = form.unit(parts, cut.dim) if cut.ranges else 0
    if not unit:  # the whole weight, or one whose error `widen` explains
        return cut.of(form.widen(parts))
    size = form.shape(parts)[cut.dim]
    pieces = [_piece(form, parts, cut.dim, first, last, unit, size) for first, last in cut.ranges]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, cut.dim)


def _piece(
    form: PackedForm, parts: Parts, dim: int, first: int, last: int, unit: int, size: int
) -> torch.Tensor:
    """Widens from the unit that holds the first row or column to the end of that of the last."""
    start = first // unit * unit
    end = min(max(-(-last // unit) * unit, start + unit), size)
    widened = form.widen(form.narrow(parts, dim, start, end - start))
    return widened.narrow(dim, first - start, last - first)
