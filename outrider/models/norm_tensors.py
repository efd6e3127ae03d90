"""The stored factors of norms."""

import torch

from outrider.models.family import Family
from outrider.ops.norm_rope.rms_norm import widest_norm_dtype


def norm_weight(
    stored: torch.Tensor, family: Family, *, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """The factors of a norm.

    Families with zero-centred norms store factor - 1. The sum would lose small values in half
    precision, so it has the type of `widest_norm_dtype`. Layer norms multiply before they round.
    """
    widest = widest_norm_dtype(device, dtype)
    if family.style.has_layer_norms:
        return stored.to(device, widest)
    if not family.has_zero_centred_norms:
        return stored.to(device, dtype)
    return (stored.float() + 1).to(device, widest)
