"""Linear layers over quantised weights, which stay in memory as they are stored, on CUDA.

Kernels widen codes in registers. For many rows of a small weight, its codes are widened for the
time of one product. Both have the same bits: scales multiply the same sums.
"""

import torch

from outrider.ops.linear.kernel_weight import KernelWeight
from outrider.ops.linear.quantised_weight import LEAST_GROUP, QuantisedWeight

_FP8_CAPABILITY = (8, 9)  # the first GPUs that widen e4m3


class QuantisedLinear:
    """Owns a weight in the layout of our kernels, [out, in] on CUDA."""

    min_rows = 1

    def __init__(self, weight: KernelWeight) -> None:
        # A CPU installation has no Triton.
        from outrider.ops.linear.quantised_linear_triton import (
            multiply_quantised,
            no_arrivals,
            takes_turns,
        )
        from outrider.ops.linear.widen_codes_triton import widen_codes, widens_first

        self.weight = weight
        self._multiply_quantised, self._takes_turns = multiply_quantised, takes_turns
        self._widen, self._widens_first = widen_codes, widens_first
        self._arrivals = no_arrivals(weight)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._multiply(x, x)

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self._multiply(x, residual, has_residual=True)

    def swiglu(self, x: torch.Tensor) -> torch.Tensor:  # [n, in] -> [n, out / 2]
        """SwiGLU of the two halves of x W^T, in the epilogue."""
        return self._multiply(x, x, is_gated=True)

    def _multiply(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        *,
        has_residual: bool = False,
        is_gated: bool = False,
    ) -> torch.Tensor:
        weight = self.weight
        x = in_order(x, weight)
        if self._widens_first(x) and not self._takes_turns(x, weight, is_gated=is_gated):
            weight = self._widen(weight, x)
        return self._multiply_quantised(
            x, weight, residual, self._arrivals, has_residual=has_residual, is_gated=is_gated
        )


def in_order(x: torch.Tensor, weight: KernelWeight) -> torch.Tensor:  # [n, in] both
    """The inputs in the order of the weight's codes."""
    return x.index_select(1, weight.order) if len(weight.order) else x


def has_kernels(device: torch.device) -> bool:
    """Whether a device has kernels for quantised weights."""
    return device.type == "cuda"


def fits_kernels(weight: QuantisedWeight, device: torch.device) -> bool:
    """Whether our kernels multiply by this weight on a device. Others are widened at load."""
    if not has_kernels(device):
        return False
    scales = weight.scales
    has_fp8 = weight.kind == "e4m3" or scales.scales.dtype == torch.float8_e4m3fn
    if has_fp8 and torch.cuda.get_device_capability(device) < _FP8_CAPABILITY:
        return False
    return scales.are_per_row or scales.group >= LEAST_GROUP
