"""The norm after the delta rule, scaled by a gate."""

import torch

from outrider.ops.fixed_activations import silu
from outrider.ops.norm_rope.rms_norm import Norm


def gated_norm(
    read: torch.Tensor,  # [num_query, heads, dim]
    gate: torch.Tensor,  # [num_query, heads * dim]
    norm: Norm,  # weight [dim]
) -> torch.Tensor:  # [num_query, heads * dim]
    """Every head normalised, and scaled by silu of its gate."""
    if read.is_cuda:
        from outrider.ops.recurrent.gated_norm_triton import gated_norm_triton

        return gated_norm_triton(read, gate, norm)
    return gated_norm_reference(read, gate, norm)


def gated_norm_reference(read: torch.Tensor, gate: torch.Tensor, norm: Norm) -> torch.Tensor:
    """The same in torch."""
    return (norm(read).flatten(1) * silu(gate.float())).to(read.dtype)
