"""Times tiles of the linear kernel against torch's library, inside CUDA graphs over cold weights.

Run on a GPU: PYTHONPATH=. python scripts/gpu/sweep_linear.py 96,192,384 [llama-8b | smollm2]
"""

import itertools
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor

import torch

from outrider.kernels.linear import Tile, choose_tile, launch
from outrider.kernels.swiglu import swiglu

BODIES = {
    "llama-8b": {
        "qkv": (6144, 4096),
        "o": (4096, 4096),
        "gate": (28672, 4096),
        "down": (4096, 14336),
    },
    "smollm2": {
        "qkv": (960, 576),
        "o": (576, 576),
        "gate": (3072, 576),
        "down": (576, 1536),
        "qkv of a head": (960, 1152),
        "scores": (49152, 576),
        "scores of a head": (12288, 576),
    },
}
RESIDUAL = ("o", "down")
COLD_BYTES = 400e6  # of weights in one graph: several times the L2


def graph_us(run, *, repeat: int = 7) -> float:
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    graph.replay()
    times = []
    for _ in range(repeat):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)


def candidates(num_rows: int):
    return few_rows(num_rows) if num_rows <= 64 else many_rows()


def few_rows(num_rows: int):
    rows = 16 if num_rows <= 16 else 32 if num_rows <= 32 else 64
    for columns, depth, stages, warps in itertools.product(
        (16, 32, 64), (64, 128, 256, 512), (2, 3, 5), (2, 4)
    ):
        if stages * (rows + columns) * depth * 2 <= 200 << 10 and (warps == 4 or columns < 64):
            yield Tile(rows=rows, columns=columns, depth=depth, stages=stages, warps=warps)


def many_rows():
    for rows, columns, depth, stages, warps in itertools.product(
        (64, 128, 256), (64, 128, 256), (64, 128), (3, 4), (4, 8)
    ):
        shared = stages * (rows + columns) * depth * 2
        area = rows * columns
        is_fitting = area <= 128 * 256 and 64 << 10 <= shared <= 220 << 10
        if is_fitting and (warps == 4 or area >= 128 * 128):
            yield Tile(rows=rows, columns=columns, depth=depth, stages=stages, warps=warps)


def library(name: str, x, weight, residual):
    if name == "gate":
        return swiglu(torch.nn.functional.linear(x, weight))
    if name not in RESIDUAL:
        return torch.nn.functional.linear(x, weight)
    return residual.addmm_(x, weight.t())


def sweep(name: str, size: int, depth: int, num_rows: int) -> None:
    copies = min(60, max(2, int(COLD_BYTES / (size * depth * 2))))
    weights = [torch.randn(size, depth, device="cuda", dtype=torch.bfloat16) for _ in range(copies)]
    x = torch.randn(num_rows, depth, device="cuda", dtype=torch.bfloat16)
    residual = torch.zeros(num_rows, size, device="cuda", dtype=torch.bfloat16)
    options = {"has_residual": name in RESIDUAL, "is_gated": name == "gate"}
    theirs = graph_us(lambda: [library(name, x, w, residual) for w in weights]) / copies
    tiles = list(candidates(num_rows))

    def compiled(tile: Tile) -> bool:
        try:
            launch(x, weights[0], residual, tile=tile, **options)
        except Exception:
            return False
        return True

    with ThreadPoolExecutor(14) as pool:
        good = [tile for tile, ok in zip(tiles, pool.map(compiled, tiles), strict=True) if ok]
    torch.cuda.synchronize()
    ours = []
    for tile in good:

        def run(tile=tile):
            return [launch(x, w, residual, tile=tile, **options) for w in weights]

        ours.append((graph_us(run) / copies, tile))
    ours.sort(key=lambda pair: pair[0])
    now = choose_tile(num_rows, size, depth, 2)
    present = [us for us, tile in ours if tile == now]
    if not present:
        present = [graph_us(lambda: [launch(x, w, residual, tile=now, **options) for w in weights])]
        present = [us / copies for us in present]
    print(f"{name} {num_rows} rows: library {theirs:.1f} us; now {present[0]:.1f} us {now}")
    for us, tile in ours[:4]:
        print(f"    {us:.1f} us {tile}", flush=True)


if __name__ == "__main__":
    for rows in (int(word) for word in sys.argv[1].split(",")):
        for name, (size, depth) in BODIES[(sys.argv[2:] or ["llama-8b"])[0]].items():
            sweep(name, size, depth, rows)
