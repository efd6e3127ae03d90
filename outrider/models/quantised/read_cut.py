"""A part of a quantised weight, without converting the rest of it."""

import logging
from collections.abc import Collection
from pathlib import Path

import torch

from outrider.models.quantised.gguf_form import GgufForm
from outrider.models.quantised.packed_form import PackedForm, Parts
from outrider.models.tensor_cut import Cut
from outrider.ops.linear.any_weight import AnyWeight, stack_weights, widened
from outrider.ops.linear.quantised_weight import LEAST_GROUP, QuantisedWeight

_log = logging.getLogger(__name__)


def read_cut(form: PackedForm, parts: Parts, cut: Cut) -> AnyWeight:
    """That part as it is stored; dense where the cut does not lie between codes."""
    if not cut.ranges:
        return form.quantised(parts)
    pieces = [_piece(form, parts, cut.dim, first, last) for first, last in cut.ranges]
    if cut.dim == 0 or len(pieces) == 1:
        return stack_weights(pieces)
    return torch.cat([widened(piece) for piece in pieces], 1)


def widen_cut(form: PackedForm, parts: Parts, cut: Cut) -> torch.Tensor:
    """The numbers of that part."""
    if isinstance(form, GgufForm):
        return cut.of(form.widen(parts))
    return widened(read_cut(form, parts, cut))


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


def is_kept(part: AnyWeight) -> bool:
    """Whether a part has codes in groups that kernels read. Others are widened."""
    if not isinstance(part, QuantisedWeight):
        return False
    return part.scales.are_per_row or part.scales.group >= LEAST_GROUP


def warn_of_widened(folder: Path, names: Collection[str]) -> None:
    """Name the weights whose parts are not kept, in one log line."""
    if names:
        _log.warning(
            "%s: parts of %d quantised weights (%s, ...) are widened at load, and take several "
            "times the memory: ranks cut them inside of small groups, or their inputs have orders "
            "(desc_act); use another --tensor-parallel-size, or weights without desc_act",
            folder,
            len(names),
            min(names),
        )
