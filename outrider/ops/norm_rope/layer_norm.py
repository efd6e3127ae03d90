"""Layer norm without bias: as RMS norm, of vectors whose mean is subtracted first."""

import torch
import torch.nn.functional as F


class LayerNorm:
    """Has the attributes of a `Norm`. Kernels that fuse an RMS norm must not take it."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:  # weight [dim] or [groups, dim]
        self.weight = weight
        self.eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:  # [n, dim] or [n, groups, dim]; both
        return layer_norm(x, self.weight, self.eps)


def layer_norm(
    x: torch.Tensor,  # [n, dim] or [n, groups, dim]
    weight: torch.Tensor,  # [dim] or [groups, dim]
    eps: float,
) -> torch.Tensor:  # as x
    """Every vector less its mean, scaled to unit root mean square, then by its weight."""
    if x.is_cuda:
        from outrider.ops.norm_rope.rms_norm_triton import layer_norm_triton  # a CPU has no Triton

        return layer_norm_triton(x, weight, eps)
    return layer_norm_reference(x, weight, eps)


def layer_norm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """In float32 whatever the type of `x`; a row depends on no other."""
    if weight.ndim == 1:
        return F.layer_norm(x.float(), x.shape[-1:], weight.float(), eps=eps).to(x.dtype)
    return (F.layer_norm(x.float(), x.shape[-1:], eps=eps) * weight.float()).to(x.dtype)
