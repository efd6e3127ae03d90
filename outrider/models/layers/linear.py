"""Linear maps with weights laid out for the device, chosen once per model, at load."""

import logging
from collections.abc import Callable
from typing import Literal, Protocol

import torch
import torch.nn.functional as F

from outrider.config.engine_config import Arithmetic
from outrider.errors import ConfigError
from outrider.models.layers.float16_linear import HalfLinear
from outrider.models.layers.int8_linear import Int8Linear, supports_fbgemm

_log = logging.getLogger(__name__)


class Linear(Protocol):
    """x W^T for every row of x."""

    min_rows: int  # fewer rows cost more time than these

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...  # [n, in] -> [n, out]

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """residual + x W^T, with the sum in the epilogue where the device can.

        The residual may be overwritten: who needs it afterwards keeps a copy.
        """
        ...  # [n, in], [n, out] -> [n, out]


class PlainLinear:
    """What torch makes of a dense weight: portable, and right for many rows on a GPU."""

    min_rows = 1

    def __init__(self, weight: torch.Tensor) -> None:  # [out, in]
        self._weight = weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._weight)

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return residual.addmm_(x, self._weight.t())


class FixedLinear:
    """Our own kernel for any number of rows: the bits of a row depend on nothing but the row."""

    min_rows = 1

    def __init__(self, weight: torch.Tensor) -> None:  # [out, in] on CUDA
        from outrider.ops.linear import linear_triton as kernels  # a CPU installation has no Triton
        from outrider.ops.linear import small_linear_triton as small

        self.weight = weight
        self._kernels = kernels
        self._small = small
        self._most_small = small.MOST_ROWS if small.fits(weight) else 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._kernels.linear(x, self.weight)

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        if x.shape[0] <= self._most_small:
            return self._small.small_plus(x, self.weight, residual)
        return self._kernels.linear_plus(x, self.weight, residual)

    def swiglu(self, x: torch.Tensor) -> torch.Tensor:  # [n, in] -> [n, out / 2]
        """The gate of the two halves, in the epilogue."""
        return self._kernels.linear_swiglu(x, self.weight)


class StreamedLinear:
    """Our own kernel for few rows, which reads weights faster; torch's library for many."""

    min_rows = 1

    def __init__(self, weight: torch.Tensor) -> None:  # [out, in] in half precision on CUDA
        from outrider.ops.linear.linear_triton import MOST_GATED_ROWS, MOST_SKINNY_ROWS

        self._most_rows = MOST_SKINNY_ROWS
        self._most_gated = MOST_GATED_ROWS
        self.weight = weight
        self._few = FixedLinear(weight)
        self._many = PlainLinear(weight)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._few(x) if x.shape[0] <= self._most_rows else self._many(x)

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        linear = self._few if x.shape[0] <= self._most_rows else self._many
        return linear.plus(x, residual)

    def swiglu(self, x: torch.Tensor) -> torch.Tensor:  # [n, in] -> [n, out / 2]
        """The gate of the two halves, in the epilogue for few rows."""
        if x.shape[0] <= self._most_gated:
            return self._few.swiglu(x)
        from outrider.ops.linear.swiglu_triton import swiglu

        return swiglu(self._many(x))


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
        self.linear = linear
        self.bias = bias
        self.min_rows = linear.min_rows

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).add_(self.bias)

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.linear.plus(x, residual).add_(self.bias)


class WideLinear:
    """Another linear map, in float32 for activations of any type."""

    def __init__(self, linear: Linear) -> None:
        self._linear = linear
        self.min_rows = linear.min_rows

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._linear(x.float())

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self._linear.plus(x.float(), residual)


LinearMaker = Callable[[torch.Tensor], Linear]  # from a weight [out, in]
WeightType = Literal["float32", "bfloat16", "float16", "int8"]


def choose_linear(
    dtype: WeightType, device: torch.device, arithmetic: Arithmetic = "fast"
) -> LinearMaker:
    """How every linear map of a model is stored and computed."""
    maker = _maker_for(dtype, device, arithmetic)
    _log.info("linear maps: %s with %s weights on %s", maker.__name__, dtype, device)
    return maker


def wide_linear(weight: torch.Tensor, arithmetic: Arithmetic) -> Linear:  # weight [out, in]
    """A map that is stored and computed in float32, whatever the model's others are."""
    return WideLinear(_maker_for("float32", weight.device, arithmetic)(weight.float()))


def is_computed_in_float32(dtype: WeightType, device: torch.device) -> bool:
    """Whether activations and KV are float32 although the weights are stored smaller."""
    return dtype == "int8" or (dtype == "float16" and device.type == "cpu" and supports_fbgemm())


def computed_dtype(dtype: WeightType, device: torch.device) -> torch.dtype:
    """The type of activations and KV beside weights of this one."""
    if is_computed_in_float32(dtype, device):
        return torch.float32
    stored: torch.dtype = getattr(torch, dtype)
    return stored


def _maker_for(
    dtype: WeightType, device: torch.device, arithmetic: Arithmetic
) -> Callable[[torch.Tensor], Linear]:
    if device.type == "cuda":
        return _cuda_maker(dtype, arithmetic)
    if dtype == "int8":
        if not supports_fbgemm():
            raise ConfigError("int8 weights need an x86 CPU; use --dtype bfloat16 or float32")
        return Int8Linear
    if dtype == "float16" and is_computed_in_float32(dtype, device):
        return HalfLinear
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return PackedLinear if dtype == "float32" and has_onednn else PlainLinear


def _cuda_maker(dtype: WeightType, arithmetic: Arithmetic) -> Callable[[torch.Tensor], Linear]:
    if dtype == "int8":
        raise ConfigError("int8 weights need an x86 CPU; use --dtype bfloat16 or float32")
    if arithmetic == "fixed":
        return FixedLinear
    return PlainLinear if dtype == "float32" else StreamedLinear
