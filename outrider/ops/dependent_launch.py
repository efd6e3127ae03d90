"""Programmatic dependent launch: a kernel may start while the kernel before it still runs.

It waits before it reads what other kernels wrote, so only launch latency and set-up overlap.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from outrider.ops.gpu_facts import capability

_FIRST_CAPABILITY = (9, 0)  # of GPUs that have it


@triton.jit
def begin(PDL: tl.constexpr):
    """Let the next kernel launch, then wait until the kernel before is complete.

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
    """Let the next kernel launch.

    A kernel that fills the device does this after its loop. Earlier, the blocks of the next kernel
    would all go to the few free places.
    """
    if PDL:
        gdc_launch_dependents()


def is_on(tensor: torch.Tensor) -> bool:
    """Whether kernels on the device of this tensor overlap."""
    return capability(tensor) >= _FIRST_CAPABILITY


def options(tensor: torch.Tensor) -> dict[str, Any]:
    """The options of a launch besides the arguments of the kernel."""
    return {"launch_pdl": True} if is_on(tensor) else {}
