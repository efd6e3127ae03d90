"""In what form a linear layer keeps its weight."""

import torch

from outrider.ops.linear.block_linear import BlockLinear
from outrider.ops.linear.dense_linear import DenseLinear
from outrider.ops.linear.float16_linear import HalfLinear
from outrider.ops.linear.int8_linear import Int8Linear
from outrider.ops.linear.linear import Linear
from outrider.ops.linear.quantised_linear import QuantisedLinear


def storage_of(linear: Linear, dtype: torch.dtype) -> str:
    """The name of the form; that of `dtype` for weights that are numbers of the model's type."""
    if isinstance(linear, BlockLinear):
        return " and ".join(linear.kinds)
    if isinstance(linear, QuantisedLinear):
        return linear.weight.kind
    if isinstance(linear, Int8Linear):
        return "int8"
    if isinstance(linear, DenseLinear):
        return dtype_name(linear.dtype)
    return dtype_name(torch.float16 if isinstance(linear, HalfLinear) else dtype)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
