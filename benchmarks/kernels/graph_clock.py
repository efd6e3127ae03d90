"""The clock of the scripts beside it: how long the device takes over what a graph recorded."""

import statistics
from collections.abc import Callable

import torch

WARM = 2  # replays that do not count


def graph_us(run: Callable[[], object], *, repeat: int = 7) -> float:
    """Microseconds of one replay, median; the first call compiles."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    times = []
    for _ in range(WARM + repeat):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times[WARM:])
