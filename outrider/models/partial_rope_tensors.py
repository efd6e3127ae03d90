"""Heads of which only the first lanes are rotated, stored so that layers may rotate whole ones."""

import torch


def spread_channels(
    weight: torch.Tensor,  # [heads * head_dim, ...]
    *,
    head_dim: int,
    rotated: int,
) -> torch.Tensor:  # [heads * head_dim, ...]
    """The same heads with each rotated pair half a head apart, where whole heads have theirs.

    The lanes between belong to pairs of frequency zero. The same order for queries and keys changes
    no score, so kernels need not know.
    """
    if rotated == head_dim:
        return weight
    heads = weight.view(-1, head_dim, *weight.shape[1:])
    half, cut = rotated // 2, rotated + (head_dim - rotated) // 2
    parts = heads[:, :half], heads[:, rotated:cut], heads[:, half:rotated], heads[:, cut:]
    return torch.cat(parts, dim=1).view_as(weight)
