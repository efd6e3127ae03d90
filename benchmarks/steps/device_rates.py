"""How fast this device copies memory and multiplies matrices. Measured in the run that uses it."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from outrider.bench.bandwidth import read_bandwidth

_COPY_BYTES = 2 << 30  # read and written again; far beyond any cache
_MATRIX = 8192
_CPU_MATRIX = 512
_REPETITIONS = 7

# What a matrix product reaches while it streams weights, the most of any row count we measured.
_STREAMING = {"H200": 3.85e12}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRates:
    """Limits of a device, and where the first one comes from."""

    name: str
    bandwidth: float  # bytes per second
    matrix: float  # floating-point operations per second, in the type of the weights


def measure_rates(device: torch.device, dtype: torch.dtype) -> tuple[DeviceRates, ...]:
    """The rates that floors are computed with, the strictest last.

    The first is the rate at which matrix products are known to stream weights on this card, where
    it is known; the last is the copy rate, or on a CPU the rate of reading.
    """
    matrix = matrix_rate(device, dtype)
    if device.type == "cpu":
        return (DeviceRates(name="read", bandwidth=read_bandwidth(), matrix=matrix),)
    card = torch.cuda.get_device_name(device)
    known = [rate for name, rate in _STREAMING.items() if name in card]
    return (
        *(DeviceRates(name="stream", bandwidth=rate, matrix=matrix) for rate in known),
        DeviceRates(name="copy", bandwidth=_copy_rate(device), matrix=matrix),
    )


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations per second of one large square product of random numbers."""
    size = _MATRIX if device.type == "cuda" else _CPU_MATRIX
    left = torch.randn(size, size, dtype=dtype, device=device)
    right = torch.randn(size, size, dtype=dtype, device=device)
    out = torch.empty_like(left)
    return 2.0 * size**3 / _median_s(lambda: torch.mm(left, right, out=out), device)


def _copy_rate(device: torch.device) -> float:
    source = torch.zeros(_COPY_BYTES // 2, dtype=torch.uint8, device=device)
    goal = torch.empty_like(source)
    return _COPY_BYTES / _median_s(lambda: goal.copy_(source), device)


def _median_s(work: Callable[[], torch.Tensor], device: torch.device) -> float:
    """Seconds on the device; the first two runs do not count."""
    timed = _timed_cuda_s if device.type == "cuda" else _timed_s
    return statistics.median([timed(work) for _ in range(2 + _REPETITIONS)][2:])


def _timed_s(work: Callable[[], torch.Tensor]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _timed_cuda_s(work: Callable[[], torch.Tensor]) -> float:
    before, after = (
        torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        for _ in range(2)
    )
    before.record()
    work()
    after.record()
    after.synchronize()
    elapsed_ms: float = before.elapsed_time(after)
    return elapsed_ms / 1e3
