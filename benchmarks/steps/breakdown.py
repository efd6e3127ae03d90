"""A breakdown of step time by the profiler: classes of kernels, and gaps."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.steps.bench_engine import BenchEngine
from benchmarks.steps.steady_rows import under_way
from benchmarks.steps.step_args import PROFILED, Case

_WARM = 4  # steps
_ACTIVE = PROFILED - _WARM
_TOP = 12  # kernels listed by name

# The first class whose pattern is found in a kernel's name takes it.
_CLASSES = (
    ("attention", re.compile(r"attention|attend|flash|fmha|prefill|softmax", re.I)),
    (
        "GEMM",
        re.compile(
            r"gemm|nvjet|xmma|cutlass|cublas|splitk|linear|bulk|specialized|grouped|_maps?_|_heads_"
            r"|matmul|addmm|::mm|_product|projected_heads",
            re.I,
        ),
    ),
    # Compiled regions of a CPU, which a profiler sees as one operation: products and attention.
    ("whole layers", re.compile(r"run_layers|run_head|catch_up_rows")),
    ("copies", re.compile(r"memcpy|memset|copy", re.I)),
)
_REST = "small kernels"
CLASSES = (*(name for name, _ in _CLASSES), _REST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One run of a kernel, or on a CPU of an operation without those inside it."""

    name: str
    start_us: float
    end_us: float
    own_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelShare:
    """The time per step of all runs of a class or of a kernel."""

    name: str
    step_s: float
    runs: float  # per step


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Times per step. Kernels may overlap, so shares can add up to more than the span."""

    case: Case
    span_s: float
    busy_s: float  # something ran
    classes: tuple[KernelShare, ...]
    kernels: tuple[KernelShare, ...]  # the longest ones

    @property
    def gap_s(self) -> float:
        return self.span_s - self.busy_s


def measure_breakdown(engine: BenchEngine, case: Case, device: torch.device) -> Breakdown:
    """Profile a few steps of running rows."""

    def steps(num: int) -> None:
        for _ in range(num):
            engine.step()

    with under_way(engine, case):
        profile_run(lambda: steps(_WARM), device)  # the first use of a profiler is slow
        kernels = profile_run(lambda: steps(_ACTIVE), device)
    return summarise(case, kernels, num_steps=_ACTIVE)


def profile_run(run: Callable[[], object], device: torch.device) -> list[Kernel]:
    """The kernels that a function ran on the device."""
    on_cuda = device.type == "cuda"
    activity = ProfilerActivity.CUDA if on_cuda else ProfilerActivity.CPU
    if on_cuda:
        torch.cuda.synchronize(device)  # so that no earlier step is in flight
    with profile(activities=[activity]) as profiler:
        run()
        if on_cuda:
            torch.cuda.synchronize(device)
    wanted = DeviceType.CUDA if on_cuda else DeviceType.CPU
    return [
        Kernel(
            name=event.name,
            start_us=event.time_range.start,
            end_us=event.time_range.end,
            own_us=event.time_range.elapsed_us() if on_cuda else event.self_cpu_time_total,
        )
        for event in profiler.events()
        if event.device_type == wanted
    ]


def summarise(case: Case, kernels: list[Kernel], *, num_steps: int) -> Breakdown:
    """Sum up kernels of several steps."""
    first = min((kernel.start_us for kernel in kernels), default=0.0)
    last = max((kernel.end_us for kernel in kernels), default=0.0)
    classes = {name: [k for k in kernels if class_of(k.name) == name] for name in CLASSES}
    names = dict.fromkeys(kernel.name for kernel in kernels)
    by_name = {name: [k for k in kernels if k.name == name] for name in names}
    shares = [_share(name, runs, num_steps) for name, runs in by_name.items()]
    return Breakdown(
        case=case,
        span_s=(last - first) / 1e6 / num_steps,
        busy_s=_union_us(kernels) / 1e6 / num_steps,
        classes=tuple(_share(name, runs, num_steps) for name, runs in classes.items()),
        kernels=tuple(sorted(shares, key=lambda share: -share.step_s)[:_TOP]),
    )


def class_of(name: str) -> str:
    """The class of a kernel by its name."""
    return next((kind for kind, pattern in _CLASSES if pattern.search(name)), _REST)


def _share(name: str, runs: list[Kernel], num_steps: int) -> KernelShare:
    total_us = sum(kernel.own_us for kernel in runs)
    return KernelShare(name=name, step_s=total_us / 1e6 / num_steps, runs=len(runs) / num_steps)


def _union_us(kernels: Iterable[Kernel]) -> float:
    """Time in which at least one of them ran."""
    total, reached = 0.0, float("-inf")
    for kernel in sorted(kernels, key=lambda kernel: kernel.start_us):
        total += max(0.0, kernel.end_us - max(kernel.start_us, reached))
        reached = max(reached, kernel.end_us)
    return total
