"""How fast this process reads memory. Measured, not taken from a data sheet."""

import statistics
import time
from collections.abc import Callable

import torch

BUFFER_BYTES = 512 << 20  # beyond any cache of today's servers
REPETITIONS = 5

Probe = Callable[[torch.Tensor], torch.Tensor]  # looks at every element of [n] float32


def read_bandwidth(buffer_bytes: int = BUFFER_BYTES) -> float:
    """Bytes per second that torch's threads read from a large buffer.

    The fastest of several probes counts, each with the median of its repetitions: an engine that
    reads faster than the probe would beat the floor.
    """
    buffer = torch.ones(buffer_bytes // 4)
    probes = (torch.sum, torch.amax, torch.linalg.vector_norm)
    return buffer_bytes / min(_median_s(probe, buffer) for probe in probes)


def _median_s(probe: Probe, buffer: torch.Tensor) -> float:  # buffer [n] float32
    probe(buffer)
    return statistics.median(_timed_s(probe, buffer) for _ in range(REPETITIONS))


def _timed_s(probe: Probe, buffer: torch.Tensor) -> float:
    start = time.perf_counter()
    probe(buffer)
    return time.perf_counter() - start
