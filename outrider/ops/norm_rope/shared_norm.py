"""RMS norm of vectors whose channels several ranks have: each adds up its own squares."""

import torch


def square_sums(x: torch.Tensor) -> torch.Tensor:  # [n, dim] -> [n] float32
    """The sum of the squares of every row. A row depends on no other."""
    if x.is_cuda:
        from outrider.ops.norm_rope.rms_norm_triton import square_sums_triton  # a CPU has no Triton

        return square_sums_triton(x)
    return square_sums_reference(x)


def square_sums_reference(x: torch.Tensor) -> torch.Tensor:
    return x.float().square().sum(-1)


def scale_by_squares(
    x: torch.Tensor,  # [n, own] channels of this rank
    weight: torch.Tensor,  # [own]
    sums: torch.Tensor,  # [n] float32, of the squares of all channels
    *,
    num_channels: int,  # of all ranks together
    eps: float,
) -> torch.Tensor:  # [n, own]
    """The channels scaled to unit root mean square over all ranks, then by their weights."""
    unit = x.float() * torch.rsqrt(sums / num_channels + eps)[:, None]
    return unit.to(x.dtype) * weight.to(x.dtype)
