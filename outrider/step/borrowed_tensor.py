"""Tensors over memory that another tensor or a CUDA graph owns."""

from typing import Any

import torch


class _Lender:
    """Describes device memory by the CUDA array interface, without owning it."""

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__cuda_array_interface__ = interface


def borrow(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor over the same memory that does not keep the memory from being reused."""
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
