"""Repairs the result of attention where keys that a query does not see are not finite.

Attention in torch adds -inf to the scores of masked keys and multiplies their values by 0. With NaN
or infinity there, both give NaN. This is rare: the result itself shows whether it happened. The
check reads the result on the host, so it runs in a graph break.
"""

import math
from collections.abc import Callable

import torch

# From queries, what their rows stored, and the mask, to what the queries read.
AttendStored = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def recompute_without_bad_keys(
    attend: AttendStored,
    query: torch.Tensor,  # [rows * width, heads, head_dim]
    stored: torch.Tensor,  # [rows, keys, vectors, dim]
    mask: torch.Tensor,  # [rows, 1, width, keys]
    out: torch.Tensor,  # [rows * width, heads, channels] overwritten if it is not finite
) -> None:
    """Compute again without keys that are not finite; queries that see one of them get NaN.

    Other results have the bits that they have if all keys are finite: a masked key adds nothing.
    """
    if math.isfinite(out.sum().item()):
        return
    is_bad = ~stored.isfinite().flatten(2).all(2)  # [rows, keys]
    sees_bad = ((mask == 0) & is_bad[:, None, None]).any(3).flatten()  # [rows * width]
    out.copy_(attend(query, stored.masked_fill(is_bad[:, :, None, None], 0.0), mask))
    out.masked_fill_(sees_bad[:, None, None], math.nan)
