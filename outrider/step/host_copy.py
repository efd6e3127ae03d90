"""Host values on their way to a device, without the host waiting for them to arrive."""

from collections.abc import Sequence

import torch


def upload(values: Sequence[object], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A new tensor of these values on the device."""
    return pinned_for(device, torch.tensor(values, dtype=dtype)).to(device, non_blocking=True)


def pinned_for(device: torch.device, host: torch.Tensor) -> torch.Tensor:
    """The tensor in memory that this device can copy from by itself.

    Such memory comes from a cache that knows when the copy from it is over.
    """
    return host.pin_memory() if device.type == "cuda" else host
