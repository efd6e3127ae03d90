"""Times what a CUDA graph captured, for the scripts beside it."""

import statistics
from collections.abc import Callable

import torch


def capture_graph(run: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """A graph of one call; the call before it compiles the kernels."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def replay_us(graph: torch.cuda.CUDAGraph) -> float:
    """Microseconds of one replay."""
    begin, end = (
        torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        for _ in range(2)
    )
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    elapsed_ms: float = begin.elapsed_time(end)
    return elapsed_ms * 1e3


def graph_us(run: Callable[[], object], *, repeat: int = 7, skip: int = 2) -> float:
    """Microseconds of one replay: the median of `repeat`, after `skip` that do not count."""
    graph = capture_graph(run)
    return statistics.median([replay_us(graph) for _ in range(skip + repeat)][skip:])


def random_bf16(*shape: int) -> torch.Tensor:
    """Normal noise on the GPU."""
    return torch.randn(shape, dtype=torch.bfloat16, device="cuda")
