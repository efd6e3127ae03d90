"""Facts about the GPU of a tensor."""

import logging
from functools import cache

import torch
import triton

_log = logging.getLogger(__name__)

HOPPER_SHARED = 227 << 10  # bytes of shared memory that a block of threads may take
_HOPPER = 9  # the major compute capability of GPUs with wgmma; later ones have other instructions
_TESTED = "3.6."  # Gluon and the order of inputs in products change between versions of Triton


def capability(tensor: torch.Tensor) -> tuple[int, int]:
    """Compute capability; (0, 0) where kernels are interpreted."""
    return _capability(tensor.device.index) if tensor.is_cuda else (0, 0)


def is_tested_hopper(tensor: torch.Tensor) -> bool:
    """Whether kernels may run here that were written for one kind of GPU and one Triton."""
    return capability(tensor)[0] == _HOPPER and _is_tested(triton.__version__)


def shared_bytes(tensor: torch.Tensor) -> int:
    """Bytes of shared memory that a block of threads may take; a Hopper's where interpreted."""
    return _shared_bytes(tensor.device.index) if tensor.is_cuda else HOPPER_SHARED


def num_cores(tensor: torch.Tensor) -> int:
    """Streaming multiprocessors of the GPU."""
    return _num_cores(tensor.device.index)


@cache
def _is_tested(version: str) -> bool:
    if version.startswith(_TESTED):
        return True
    _log.warning(
        "Triton %s: some linear layers use slower tiles; the fastest need Triton %sx",
        version, _TESTED,
    )  # fmt: skip
    return False


@cache
def _num_cores(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count


@cache
def _capability(index: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(index)


@cache
def _shared_bytes(index: int) -> int:
    # The limit that Triton checks before it launches a kernel.
    properties: dict[str, int] = triton.runtime.driver.active.utils.get_device_properties(index)
    return properties["max_shared_mem"]
