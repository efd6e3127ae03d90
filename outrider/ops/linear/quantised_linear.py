"""Linear layers over quantised weights, which stay in memory as they are stored, on CUDA.

For few rows, kernels widen codes in registers. For many, the weight is widened for the time of one
product. Both have the bits of a dense weight: its numbers, rounded once to the type of activations.
"""

from collections.abc import Callable

import torch

from outrider.ops.linear.kernel_weight import KernelWeight
from outrider.ops.linear.linear import FixedLinear, Linear, StreamedLinear
from outrider.ops.linear.linear_limits import MOST_QUANTISED_ROWS
from outrider.ops.linear.quantised_weight import QuantisedWeight
from outrider.ops.linear.swiglu import swiglu

_LEAST_GROUP = 8  # inputs: smaller groups have more bytes of scales than of codes
_FP8_CAPABILITY = (8, 9)  # the first GPUs that widen e4m3


class QuantisedLinear:
    """Owns a weight in the layout of our kernels, [out, in] on CUDA."""

    min_rows = 1

    def __init__(self, weight: KernelWeight, make_dense: Callable[[torch.Tensor], Linear]) -> None:
        # A CPU installation has no Triton.
        from outrider.ops.linear import linear_triton
        from outrider.ops.linear.quantised_product_triton import widen_triton

        self.weight = weight
        self._make_dense = make_dense
        self._kernels = linear_triton
        self._widen = widen_triton

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x = in_order(x, self.weight)
        if x.shape[0] <= MOST_QUANTISED_ROWS:
            return self._kernels.linear(x, self.weight)
        return self._dense(x)(x)

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        x = in_order(x, self.weight)
        if x.shape[0] <= MOST_QUANTISED_ROWS:
            return self._kernels.linear_plus(x, self.weight, residual)
        return self._dense(x).plus(x, residual)

    def swiglu(self, x: torch.Tensor) -> torch.Tensor:  # [n, in] -> [n, out / 2]
        """SwiGLU of the two halves of x W^T, in the epilogue of our own kernels."""
        x = in_order(x, self.weight)
        if x.shape[0] <= MOST_QUANTISED_ROWS:
            return self._kernels.linear_swiglu(x, self.weight)
        dense = self._dense(x)
        if isinstance(dense, FixedLinear | StreamedLinear):
            return dense.swiglu(x)
        return swiglu(dense(x))

    def _dense(self, x: torch.Tensor) -> Linear:
        return self._make_dense(self._widen(self.weight, x.dtype))


def in_order(x: torch.Tensor, weight: KernelWeight) -> torch.Tensor:  # [n, in] both
    """The inputs in the order of the weight's codes."""
    return x.index_select(1, weight.order) if len(weight.order) else x


def fits_kernels(weight: QuantisedWeight, device: torch.device) -> bool:
    """Whether our kernels multiply by this weight on a device. Others are widened at load."""
    if device.type != "cuda":
        return False
    scales = weight.scales
    has_fp8 = weight.kind == "e4m3" or scales.scales.dtype == torch.float8_e4m3fn
    if has_fp8 and torch.cuda.get_device_capability(device) < _FP8_CAPABILITY:
        return False
    return scales.scales.shape[0] == 1 or scales.group >= _LEAST_GROUP
