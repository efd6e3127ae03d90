"""Programmatic dependent launch: a kernel may start while the one before it still runs.

It waits before it touches what others wrote, so only launch latency and set-up overlap.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from outrider.ops import gpu_facts as device

_FIRST_WITH_IT = (9, 0)  # compute capability


@triton.jit
def begin(PDL: tl.constexpr):
    """Let the next kernel be launched, then wait until the one before is complete.

    For kernels that leave most of the device free.
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def wait(PDL: tl.constexpr):
    """Wait until the kernel before is complete."""
    if PDL:
        gdc_wait()


@triton.jit
def release(PDL: tl.constexpr):
    """Let the next kernel be launched.

    A kernel that fills the device does this after its loop: before, the blocks of the next one
    would crowd together where there is room.
    """
    if PDL:
        gdc_launch_dependents()


def is_on(tensor: torch.Tensor) -> bool:
    """Whether kernels on the device of this tensor overlap."""
    return device.capability(tensor) >= _FIRST_WITH_IT


def options(tensor: torch.Tensor) -> dict[str, Any]:
    """What a launch must say besides the kernel's own arguments."""
    return {"launch_pdl": True} if is_on(tensor) else {}
