"""Linear maps with int8 weights for x86 CPUs: a quarter of the bytes that bound decoding.

Weights are symmetric per output channel, activations symmetric per row, sums exact in int32. A
row's result therefore never depends on the rows beside it.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_ENGINE = "fbgemm"
_ZERO_POINT = 128  # activations are stored unsigned
_TINY = 1e-12  # a row of zeros must not divide by zero


def supports_int8() -> bool:
    return _ENGINE in torch.backends.quantized.supported_engines


class Int8Linear:
    """Owns a weight in FBGEMM's packed layout. Inputs and outputs are float32."""

    min_rows = 1

    def __init__(self, weight: torch.Tensor) -> None:  # [out, in] float32
        self._packed = _pack(weight)
        # Without VNNI the products of two neighbours are summed in int16: halve the range.
        levels = 127 if torch.cpu._is_vnni_supported() else 63
        self._step = 1.0 / levels  # of an activation, after its row is divided by its peak
        self._apply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y, peak = self._unscaled(x)
        return y.mul_(peak)

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        y, peak = self._unscaled(x)
        return torch.addcmul(residual, y, peak)

    def _unscaled(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The map of rows divided by their peaks, [n, out], and those peaks, [n, 1]."""
        peak = x.abs().amax(-1, keepdim=True).clamp_min_(_TINY)
        return self._apply(x / peak, self._step, _ZERO_POINT, self._packed), peak


def _pack(weight: torch.Tensor) -> Any:
    """The weight, rounded to 8 bits per output channel, as FBGEMM wants it."""
    scales = weight.abs().amax(1).clamp_min(_TINY) / 127  # [out]
    rounded = (weight / scales[:, None]).round_().to(torch.int8)
    with _fbgemm(), warnings.catch_warnings():
        # Quantised tensor types will leave torch after the versions we allow.
        warnings.simplefilter("ignore", UserWarning)
        quantised = torch._make_per_channel_quantized_tensor(
            rounded, scales.double(), torch.zeros_like(scales, dtype=torch.int64), 0
        )
        return torch.ops.quantized.linear_prepack(quantised, None)


@contextmanager
def _fbgemm() -> Iterator[None]:
    """Pack with FBGEMM, whatever engine this process uses otherwise."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = _ENGINE
    try:
        yield
    finally:
        torch.backends.quantized.engine = before
