"""Which class of linear layer computes a model's weights: chosen once per model, at load."""

import logging
from collections.abc import Callable
from typing import Literal

import torch

from outrider.config.engine_config import Arithmetic
from outrider.errors import ConfigError
from outrider.ops.compiled.find_blocks import find_blocks, why_not_searched
from outrider.ops.linear.any_weight import AnyWeight
from outrider.ops.linear.block_linear import BlockLinear, eight_bit_linear, why_no_blocks
from outrider.ops.linear.float16_linear import HalfLinear
from outrider.ops.linear.int8_linear import Int8Linear, supports_fbgemm
from outrider.ops.linear.kernel_weight import kernel_weight
from outrider.ops.linear.linear import (
    FixedLinear,
    Linear,
    PackedLinear,
    PlainLinear,
    StreamedLinear,
    WideLinear,
)
from outrider.ops.linear.quantised_linear import QuantisedLinear, fits_kernels
from outrider.ops.linear.quantised_weight import QuantisedWeight

_log = logging.getLogger(__name__)

LinearMaker = Callable[[AnyWeight], Linear]  # from a weight [out, in]
_DenseMaker = Callable[[torch.Tensor], Linear]
WeightType = Literal["float32", "bfloat16", "float16", "int8", "packed"]


def choose_linear(
    dtype: WeightType, device: torch.device, arithmetic: Arithmetic = "fast"
) -> LinearMaker:
    """How every linear layer of a model is stored and computed."""
    make_dense = _maker_for(dtype, device, arithmetic)
    _log.info("linear layers: %s with %s weights on %s", make_dense.__name__, dtype, device)

    def dense_or_quantised(weight: AnyWeight) -> Linear:
        if not isinstance(weight, QuantisedWeight):
            return make_dense(weight)
        if fits_kernels(weight, device):
            return QuantisedLinear(kernel_weight(weight))
        return make_dense(weight.widen().to(computed_dtype(dtype, device)))

    return dense_or_quantised


def wide_linear(weight: torch.Tensor, arithmetic: Arithmetic) -> Linear:  # weight [out, in]
    """A linear layer in float32, whatever the types of the model's other layers are."""
    return WideLinear(_maker_for("float32", weight.device, arithmetic)(weight.float()))


def is_computed_in_float32(dtype: WeightType, device: torch.device) -> bool:
    """Whether activations and KV are float32 although the weights are stored smaller."""
    return dtype == "int8" or (dtype == "float16" and device.type == "cpu" and supports_fbgemm())


def computed_dtype(dtype: WeightType, device: torch.device) -> torch.dtype:
    """The type of activations and KV of a model with weights of this type."""
    if dtype == "packed" or is_computed_in_float32(dtype, device):
        return torch.float32
    stored: torch.dtype = getattr(torch, dtype)
    return stored


def _maker_for(dtype: WeightType, device: torch.device, arithmetic: Arithmetic) -> _DenseMaker:
    if device.type == "cuda":
        return _cuda_maker(dtype, arithmetic)
    if dtype == "int8":
        return _int8_maker()
    if dtype == "packed":
        return _packed_maker(device, arithmetic)
    if dtype == "float16" and is_computed_in_float32(dtype, device):
        return HalfLinear
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return PackedLinear if dtype == "float32" and has_onednn else PlainLinear


def _int8_maker() -> _DenseMaker:
    why = why_no_blocks()
    if not why:
        return eight_bit_linear
    if not supports_fbgemm():
        raise ConfigError("int8 weights need an x86 CPU; use --dtype bfloat16 or float32")
    _log.info("int8 weights are multiplied by FBGEMM; faster kernels are off: %s", why)
    return Int8Linear


def _packed_maker(device: torch.device, arithmetic: Arithmetic) -> _DenseMaker:
    """Weights that were widened from GGUF blocks are packed again; all others stay in float32."""
    make_wide = _maker_for("float32", device, arithmetic)
    if why := why_not_searched():
        _log.info("no weights are packed, all are float32: %s", why)
        return make_wide

    def packed_or_wide(weight: torch.Tensor) -> Linear:
        found = find_blocks(weight)
        if found is None or why_no_blocks():  # which compiles; models without blocks do without
            return make_wide(weight)
        return BlockLinear(found.rows, found.name, weight.shape[1])

    return packed_or_wide


def _cuda_maker(dtype: WeightType, arithmetic: Arithmetic) -> _DenseMaker:
    if dtype in ("int8", "packed"):
        raise ConfigError(f"{dtype} weights need an x86 CPU; use --dtype bfloat16 or float32")
    if arithmetic == "fixed":
        return FixedLinear
    return PlainLinear if dtype == "float32" else StreamedLinear
