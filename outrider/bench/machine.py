"""The machine and the software that a number belongs to."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import torch

import outrider


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The facts that must be equal before two results may be compared."""

    cpu: str
    cores: int  # that this process may use
    threads: int  # that torch computes with
    torch: str
    outrider: str
    has_busy_neighbour: bool

    def __str__(self) -> str:
        return f"{self.cpu}, {self.cores} cores, {self.threads} threads, torch {self.torch}"


def this_machine(*, has_busy_neighbour: bool) -> Machine:
    """The machine as this process sees it now."""
    return Machine(
        cpu=_cpu_model(),
        cores=num_cores(),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        outrider=outrider.__version__,
        has_busy_neighbour=has_busy_neighbour,
    )


def num_cores() -> int:
    """Cores that this process may use."""
    if platform.system() == "Linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_model() -> str:
    """The name that Linux reports; on other systems, the architecture."""
    listing = Path("/proc/cpuinfo")
    if listing.is_file():
        for line in listing.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
