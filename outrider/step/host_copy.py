"""Copies between host and device that the host does not wait for."""

from collections.abc import Sequence

import torch


def upload(values: Sequence[object], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A new tensor of these values on the device."""
    return pinned_for(device, torch.tensor(values, dtype=dtype)).to(device, non_blocking=True)


def pinned_for(device: torch.device, host: torch.Tensor) -> torch.Tensor:
    """The tensor in pinned memory, from which a GPU copies without the host.

    Pinned memory comes from a cache that knows when a copy from it or into it has ended.
    """
    return host.pin_memory() if device.type == "cuda" else host


def download(tensor: torch.Tensor) -> torch.Tensor:
    """Start to copy a tensor to the host. The result is valid after an event recorded now."""
    is_pinned = tensor.device.type == "cuda"
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=is_pinned)
    return host.copy_(tensor, non_blocking=True)
