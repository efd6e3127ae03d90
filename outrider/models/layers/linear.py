"""Linear maps with weights laid out for the device, chosen once per model, at load."""

import logging
from collections.abc import Callable
from typing import Literal, Protocol

import torch
import torch.nn.functional as F

from outrider.errors import ConfigError
from outrider.models.layers.half import HalfLinear
from outrider.models.layers.int8 import Int8Linear, supports_fbgemm

_log = logging.getLogger(__name__)


class Linear(Protocol):
    """x W^T for every row of x; no row's result depends on the other rows."""

    min_rows: int  # fewer rows cost more time than these

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...  # [n, in] -> [n, out]

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """residual + x W^T, with the sum in the epilogue where the device can."""
        ...  # [n, in], [n, out] -> [n, out]


class PlainLinear:
    """What torch makes of a dense weight: portable, and right for a GPU."""

    min_rows = 1

    def __init__(self, weight: torch.Tensor) -> None:  # [out, in]
        self._weight = weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._weight)

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return torch.addmm(residual, x, self._weight.t())


class PackedLinear:
    """A weight in oneDNN's blocked layout: reads memory 2 to 3 times faster than plain on a CPU.

    oneDNN takes a slower kernel below 3 rows; 4 rows cost less time than 1 (SmolLM2-135M, all
    its maps, 2 cores of Zen 4: 1, 2, 4, 8 rows take 20, 24, 16, 21 ms).
    """

    min_rows = 4

    def __init__(self, weight: torch.Tensor) -> None:  # [out, in]
        # The batch size hint only picks the layout; one picked for 16 rows or more serves all.
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, 32)
        self._apply = torch.ops.mkldnn._linear_pointwise.default
        self._apply_plus = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self._apply(x, self._weight, None, "none", [], "")
        return y

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self._apply_plus(x, residual, self._weight, None, "add")
        return y


class BiasedLinear:
    """Another linear map, with a bias added."""

    def __init__(self, linear: Linear, bias: torch.Tensor) -> None:  # bias [out]
        self._linear = linear
        self._bias = bias
        self.min_rows = linear.min_rows

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._linear(x).add_(self._bias)

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self._linear.plus(x, residual).add_(self._bias)


LinearMaker = Callable[[torch.Tensor], Linear]  # from a weight [out, in]
WeightType = Literal["float32", "bfloat16", "float16", "int8"]


def choose_linear(dtype: WeightType, device: torch.device) -> LinearMaker:
    """How every linear map of a model is stored and computed."""
    maker = _maker_for(dtype, device)
    _log.info("linear maps: %s with %s weights on %s", maker.__name__, dtype, device)
    return maker


def is_computed_in_float32(dtype: WeightType, device: torch.device) -> bool:
    """Whether activations and KV are float32 although the weights are stored smaller."""
    return dtype == "int8" or (dtype == "float16" and device.type == "cpu" and supports_fbgemm())


def _maker_for(dtype: WeightType, device: torch.device) -> type[Linear]:
    if dtype == "int8":
        if device.type != "cpu" or not supports_fbgemm():
            raise ConfigError("int8 weights need an x86 CPU; use --dtype bfloat16 or float32")
        return Int8Linear
    if dtype == "float16" and is_computed_in_float32(dtype, device):
        return HalfLinear
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if device.type == "cpu" and dtype == "float32" and has_onednn:
        return PackedLinear
    return PlainLinear
