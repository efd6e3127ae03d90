"""Linear layers with int8 weights for x86 CPUs: a quarter of the bytes that bound decoding.

Weights are quantised symmetrically per output channel. Each row of activations has its own step and
two int8 digits. One digit costs 5% of perplexity on SmolLM2-135M; two add nothing to the 0.6% that
the weights cost. Sums are exact in int32, so the result of a row does not depend on the other rows.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_ENGINE = "fbgemm"
_TINY = 1e-12  # a row of zeros must not divide by zero


def supports_fbgemm() -> bool:
    return _ENGINE in torch.backends.quantized.supported_engines


class Int8Linear:
    """Owns a weight in FBGEMM's packed layout. Inputs and outputs are float32."""

    min_rows = 1

    def __init__(self, weight: torch.Tensor) -> None:  # [out, in] float32
        self._packed = _pack(weight)
        # Without VNNI the products of two neighbours are summed in int16: only 7 bits fit.
        self._levels = 127 if torch.cpu._is_vnni_supported() else 63
        self._zero_point = self._levels + 1  # activations are stored unsigned
        self._tiny = torch.tensor(_TINY)
        self._digits = torch.tensor([1.0, 2.0 * self._levels])[:, None, None]  # [2, 1, 1]
        self._apply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y, step = self._in_steps(x)
        return y.mul_(step)

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        y, step = self._in_steps(x)
        return torch.addcmul(residual, y, step)

    def _in_steps(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x W^T of every row in units of its own step, [n, out], and these steps, [n, 1]."""
        step = torch.add(self._tiny, x.abs().amax(-1, keepdim=True), alpha=1 / self._levels)
        scaled = x * (self._digits / step)  # [2, n, in]
        high, low = scaled.unbind()
        # The second digit is the rounding error of the first. Both share one read of the weight.
        low.sub_(high.round(), alpha=2 * self._levels)
        y = self._apply(scaled.flatten(0, 1), 1.0, self._zero_point, self._packed)  # [2 * n, out]
        high, low = y.unflatten(0, (2, -1)).unbind()
        return torch.add(high, low, alpha=0.5 / self._levels), step


def _pack(weight: torch.Tensor) -> Any:
    """The weight, rounded to 8 bits per output channel, in the layout of FBGEMM."""
    scales = weight.abs().amax(1).clamp_min(_TINY) / 127  # [out]
    rounded = (weight / scales[:, None]).round_().to(torch.int8)
    with _fbgemm(), warnings.catch_warnings():
        # torch warns that later versions remove quantised tensor types.
        warnings.simplefilter("ignore", UserWarning)
        quantised = torch._make_per_channel_quantized_tensor(
            rounded, scales.double(), torch.zeros_like(scales, dtype=torch.int64), 0
        )
        return torch.ops.quantized.linear_prepack(quantised, None)


@contextmanager
def _fbgemm() -> Iterator[None]:
    """Select FBGEMM while packing, and the engine of this process afterwards."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = _ENGINE
    try:
        yield
    finally:
        torch.backends.quantized.engine = before
