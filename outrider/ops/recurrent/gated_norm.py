"""The norm after the delta rule, scaled by a gate."""

from typing import Protocol

import torch
import torch.nn.functional as F


class HeadNorm(Protocol):
    """Scales every head to unit root mean square, then each channel by its weight."""

    weight: torch.Tensor  # [dim]
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


def gated_norm(
    read: torch.Tensor,  # [num_query, heads, dim]
    gate: torch.Tensor,  # [num_query, heads * dim]
    norm: HeadNorm,
) -> torch.Tensor:  # [num_query, heads * dim]
    """Every head normalised, and scaled by silu of its gate."""
    if read.is_cuda:
        from outrider.ops.recurrent.gated_norm_triton import gated_norm_triton

        return gated_norm_triton(read, gate, norm)
    return gated_norm_reference(read, gate, norm)


def gated_norm_reference(read: torch.Tensor, gate: torch.Tensor, norm: HeadNorm) -> torch.Tensor:
    """The same in torch."""
    return (norm(read).flatten(1) * F.silu(gate.float())).to(read.dtype)
