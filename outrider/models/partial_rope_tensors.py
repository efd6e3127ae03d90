"""Heads with partial rotary embedding, reordered so that layers can rotate whole heads."""

import torch


def spread_channels(
    weight: torch.Tensor,  # [heads * head_dim, ...]
    *,
    head_dim: int,
    rotated: int,
) -> torch.Tensor:  # [heads * head_dim, ...]
    """The weight with each rotated pair half a head apart, as in fully rotated heads.

    The other channels form pairs of frequency zero. Queries and keys get the same order, so no
    attention score changes and kernels need no special case.
    """
    if rotated == head_dim:
        return weight
    heads = weight.view(-1, head_dim, *weight.shape[1:])
    half, cut = rotated // 2, rotated + (head_dim - rotated) // 2
    parts = heads[:, :half], heads[:, rotated:cut], heads[:, half:rotated], heads[:, cut:]
    return torch.cat(parts, dim=1).view_as(weight)
