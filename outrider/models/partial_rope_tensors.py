"""The channels of heads, reordered so that layers can rotate whole heads by halves."""

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


def split_rotary_pairs(
    weight: torch.Tensor,  # [rows, ...], the last `rope` of every `dim` rows are rotated
    *,
    dim: int,
    rope: int,
) -> torch.Tensor:  # [rows, ...]
    """The weight with each rotary pair half of the rotated channels apart, as the layers rotate.

    Queries and keys get the same order, so no attention score changes.
    """
    heads = weight.view(-1, dim, *weight.shape[1:])
    plain, rotated = heads[:, : dim - rope], heads[:, dim - rope :]
    apart = torch.cat([plain, rotated[:, 0::2], rotated[:, 1::2]], dim=1)
    return apart.view_as(weight)
