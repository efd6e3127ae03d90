"""A linear layer with a weight of its own for every head."""

import torch

from outrider.ops.linear.fixed_product import multiply_fixed


def head_linear(
    x: torch.Tensor,  # [n, heads, in], unit stride along in
    weights: torch.Tensor,  # [heads, in, out], any strides
    out: torch.Tensor,  # [n, heads, out] written; unit stride along out
) -> None:
    """Multiply the vector of every head by the weight of that head."""
    if x.is_cuda:
        from outrider.ops.linear.head_linear_triton import head_linear_triton

        head_linear_triton(x, weights, out)
    else:
        head_linear_reference(x, weights, out)


def head_linear_reference(x: torch.Tensor, weights: torch.Tensor, out: torch.Tensor) -> None:
    """The same on a CPU."""
    multiply_fixed(x.transpose(0, 1), weights, out.transpose(0, 1))
