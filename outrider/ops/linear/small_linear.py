"""Linear layers of a small model for few rows, fused with the norm before them.

Each stands for a norm, a linear layer and what follows; `linear_limits` says which weights fit.
"""

import torch

from outrider.ops.norm_rope.rms_norm import Norm
from outrider.ops.norm_rope.rotary import Rotation


class NormedSwiglu:
    """silu(gate) * up of the two halves of norm(x) W^T, in one kernel."""

    def __init__(self, norm: Norm, weight: torch.Tensor) -> None:  # [2 * intermediate, in] on CUDA
        from outrider.ops.linear.small_linear_triton import normed_swiglu_triton

        self._norm = norm
        self._weight = weight
        self._kernel = normed_swiglu_triton

    def __call__(self, x: torch.Tensor) -> torch.Tensor:  # [n, in] -> [n, intermediate]
        return self._kernel(x, self._norm, self._weight)


class NormedQkv:
    """Norm, projection, bias, rotation and the KV write, in one kernel."""

    def __init__(
        self,
        norm: Norm,
        *,
        weight: torch.Tensor,  # [(heads + 2 * kv_heads) * head_dim, in] on CUDA
        bias: torch.Tensor,  # [(heads + 2 * kv_heads) * head_dim], or [0]
    ) -> None:
        from outrider.ops.linear.qkv_projection_triton import qkv_projection_triton

        self._norm = norm
        self._weight = weight
        self._bias = bias
        self._kernel = qkv_projection_triton

    def __call__(
        self,
        x: torch.Tensor,  # [num_query, in]
        rotation: Rotation,
        layer: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim]
        slots: torch.Tensor,  # [num_query]
    ) -> torch.Tensor:  # [num_query, heads, head_dim]
        """The rotated queries; keys and values are written to their slots."""
        return self._kernel(x, self._norm, self._weight, self._bias, rotation, layer, slots)
