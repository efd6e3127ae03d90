"""Which class of linear layer computes a model's weights: chosen once per model, at load."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch

from outrider.config.engine_config import Arithmetic
from outrider.errors import ConfigError
from outrider.ops.compiled.find_blocks import find_blocks, why_not_searched
from outrider.ops.linear.any_weight import AnyWeight
from outrider.ops.linear.block_linear import (
    BlockLinear,
    eight_bit_linear,
    have_whole_tiles,
    supports_blocks,
)
from outrider.ops.linear.block_weight import BlockWeight
from outrider.ops.linear.dense_linear import DenseLinear
from outrider.ops.linear.float16_linear import HalfLinear
from outrider.ops.linear.group_blocks import fits_blocks, group_linear
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
from outrider.ops.linear.tiled_product import why_no_products
from outrider.ops.linear.tiled_weight import why_no_tiles

_log = logging.getLogger(__name__)

LinearMaker = Callable[[AnyWeight], Linear]  # from a weight [out, in]
_DenseMaker = Callable[[torch.Tensor], Linear]
WeightType = Literal["float32", "bfloat16", "float16", "int8", "packed"]


def choose_linear(
    dtype: WeightType, device: torch.device, arithmetic: Arithmetic = "fast"
) -> LinearMaker:
    """How every linear layer of a model is stored and computed."""
    make_dense = _maker_for(dtype, device, arithmetic)
    kind = make_dense.func if isinstance(make_dense, partial) else make_dense
    _log.info("linear layers: %s with %s weights on %s", kind.__name__, dtype, device)

    def dense_or_quantised(weight: AnyWeight) -> Linear:
        if isinstance(weight, BlockWeight):
            return _block_linear(weight, make_dense)
        if not isinstance(weight, QuantisedWeight):
            return make_dense(weight)
        if fits_kernels(weight, device):
            return QuantisedLinear(kernel_weight(weight))
        if dtype == "packed" and fits_blocks(weight) and not why_no_products():
            return group_linear(weight)
        return make_dense(weight.widen().to(computed_dtype(dtype, device)))

    return dense_or_quantised


def wide_linear(weight: torch.Tensor, arithmetic: Arithmetic) -> Linear:  # weight [out, in]
    """A linear layer in float32, whatever the types of the model's other layers are."""
    return WideLinear(_maker_for("float32", weight.device, arithmetic)(weight.float()))


def type_of_guesses(dtype: WeightType, device: torch.device) -> WeightType:
    """The type of weights whose results are only guesses, such as those of a draft head: 8 bits
    where the target computes in float32 on a CPU. Draft steps wait for the bytes of their weights.
    """
    is_wide = dtype in ("packed", "float32") and device.type == "cpu"
    return "int8" if is_wide and supports_blocks() else dtype


def computed_dtype(dtype: WeightType, device: torch.device) -> torch.dtype:
    """The type of activations and KV of a model with weights of this type.

    On a CPU it is float32, whatever the weights are stored as: products in 2 bytes have other bits
    in other batches, and are not faster.
    """
    if device.type == "cpu" or dtype in ("int8", "packed"):
        return torch.float32
    stored: torch.dtype = getattr(torch, dtype)
    return stored


def stored_dtype(dtype: WeightType, device: torch.device) -> torch.dtype:
    """The type in which dense experts and grouped layers are stored."""
    if dtype == "int8" and device.type == "cpu":
        raise ConfigError(
            "experts cannot be stored as int8; use --dtype bfloat16, float16 or float32"
        )
    is_small = dtype in ("bfloat16", "float16")
    if device.type == "cpu" and is_small and not why_no_tiles():
        stored: torch.dtype = getattr(torch, dtype)
        return stored
    return computed_dtype(dtype, device)


def _maker_for(dtype: WeightType, device: torch.device, arithmetic: Arithmetic) -> _DenseMaker:
    if device.type == "cuda":
        return _cuda_maker(dtype, arithmetic)
    if dtype == "int8":
        return _int8_maker()
    if dtype == "packed":
        return _packed_maker(device, arithmetic)
    return _dense_maker(dtype)


def _dense_maker(dtype: WeightType) -> _DenseMaker:
    """For a CPU: compiled loops, or the library with the smallest weights that computes so."""
    why = why_no_tiles()
    if not why:
        stored: torch.dtype = getattr(torch, dtype)
        return partial(DenseLinear, dtype=stored)
    if dtype == "float16" and supports_fbgemm():
        return HalfLinear
    if dtype != "float32":
        _log.warning(
            "%s weights are widened to float32 on this CPU, twice the memory: %s", dtype, why
        )
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return PackedLinear if has_onednn else PlainLinear


def _int8_maker() -> _DenseMaker:
    why = why_no_products()
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
        if found is None or why_no_products():  # which compiles; models without blocks do without
            return make_wide(weight)
        return BlockLinear([found.parts()], weight.shape[1])

    return packed_or_wide


def _block_linear(weight: BlockWeight, make_dense: _DenseMaker) -> Linear:
    """Blocks that are stored as such are read on machines that multiply by them."""
    parts = [piece.parts() for piece in weight.pieces]
    if have_whole_tiles([part.outputs for part in parts]):
        return BlockLinear(parts, weight.shape[1])
    _log.info("a weight of %d outputs is float32: its kinds of blocks share tiles", weight.shape[0])
    return make_dense(weight.widen())


def _cuda_maker(dtype: WeightType, arithmetic: Arithmetic) -> _DenseMaker:
    if dtype in ("int8", "packed"):
        raise ConfigError(f"{dtype} weights need an x86 CPU; use --dtype bfloat16 or float32")
    if arithmetic == "fixed":
        return FixedLinear
    return PlainLinear if dtype == "float32" else StreamedLinear
