"""Tensors over memory that somebody else owns, as a recording's replay sees it."""

from typing import Any

import torch


class _Lender:
    """Describes device memory by the protocol that array libraries share; owns none of it."""

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__cuda_array_interface__ = interface


def borrow(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as the same tensor, without keeping it from being used again."""
    raw = tensor.view(_INTEGERS[tensor.element_size()])
    itemsize = raw.element_size()
    lender = _Lender(
        {
            "shape": tuple(raw.shape),
            "strides": tuple(stride * itemsize for stride in raw.stride()),
            "typestr": f"<i{itemsize}",
            "data": (raw.data_ptr(), False),
            "version": 3,
        }
    )
    return torch.as_tensor(lender, device=tensor.device).view(tensor.dtype)


_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
