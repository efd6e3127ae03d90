"""Finds weights that hold NaN or infinity. They are reported and loaded: no text may use them."""

import logging
import math
from collections.abc import Sequence
from pathlib import Path

import torch

from outrider.ops.linear.any_weight import AnyWeight
from outrider.ops.linear.quantised_weight import widen_scales

_NUM_NAMED = 5  # tensors that the log line lists

_log = logging.getLogger(__name__)


def is_finite(weight: AnyWeight) -> bool:
    """Whether a weight holds numbers only. The extremes need one pass and no copy."""
    if not isinstance(weight, torch.Tensor):
        return weight.is_finite()
    if not weight.is_floating_point() or not weight.numel():
        return True
    if weight.dtype.itemsize == 1:  # torch has no extremes of 8-bit floats
        weight = weight.float()
    least, most = torch.aminmax(weight)
    return math.isfinite(least.item()) and math.isfinite(most.item())


def are_scales(stored: torch.Tensor) -> bool:
    """Whether all of these scales are numbers."""
    if stored.dtype == torch.float8_e8m0fnu:
        stored = stored.view(torch.uint8)
    return bool(widen_scales(stored).isfinite().all())


def warn_of_non_finite(folder: Path, names: Sequence[str]) -> None:
    """Name the weights of a folder that are not finite, in one log line."""
    if not names:
        return
    rest = f" and {len(names) - _NUM_NAMED} more" if len(names) > _NUM_NAMED else ""
    _log.warning(
        "%s has NaN or infinity in weights (%d): %s%s; answers that use them are wrong or end with "
        "an error: download the folder again, or use other weights",
        folder,
        len(names),
        ", ".join(names[:_NUM_NAMED]),
        rest,
    )
