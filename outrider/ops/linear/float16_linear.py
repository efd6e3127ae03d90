"""Linear layers with float16 weights for x86 CPUs: half the bytes that bound decoding.

Weights are rounded once, products are summed in float32. The bits of a row do not depend on the
other rows.
"""

import torch


class HalfLinear:
    """Owns a weight in FBGEMM's packed layout. Inputs and outputs are float32."""

    min_rows = 1

    def __init__(self, weight: torch.Tensor) -> None:  # [out, in] float32
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight, None)
        self._apply = torch.ops.quantized.linear_dynamic_fp16.default

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self._apply(x, self._packed)
        return y

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self(x).add_(residual)
