"""Times latent attention inside CUDA graphs over distinct latents, by tiles and by slices.

Run on a GPU: python -m benchmarks.kernels.time_latent [--quick]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from benchmarks.kernels.graph_clock import capture_graph, replay_us
from outrider.ops.attention import latent_decode_triton as latent
from outrider.ops.attention import latent_slices_triton as latent_slices
from outrider.ops.attention import tree_paths_triton as paths
from outrider.ops.attention.latent_decode_triton import LatentTiles
from outrider.ops.attention.splits_triton import MOST_PARTIALS

READ_RATE = 3.85e12  # bytes/s of an H200
MATRIX_RATE = 775e12  # flop/s of a large bf16 product on it
KV_BYTES = 8e9  # of all layers of a graph together, where one is not larger
LATENT, ROPE = 512, 64
SECONDS = 0.03  # of replays of one candidate
DEVICE = torch.device("cuda")


@dataclass(frozen=True, kw_only=True)
class LatentStep:
    """Rows of equal length."""

    heads: int
    rows: int
    context: int
    nodes: int = 1
    page_size: int = 16
    is_tree: bool = False

    @property
    def read_s(self) -> float:
        return self.rows * self.context * (LATENT + ROPE) * 2 / READ_RATE

    @property
    def multiply_s(self) -> float:
        pairs = self.rows * self.nodes * self.context * self.heads
        return 2.0 * pairs * (2 * LATENT + ROPE) / MATRIX_RATE

    def __str__(self) -> str:
        kind = "tree" if self.is_tree else "chain" if self.nodes > 1 else "decode"
        return (
            f"{self.heads:3} heads {kind:6} nodes {self.nodes} rows {self.rows:3} "
            f"context {self.context:5} page {self.page_size:2}"
        )


@dataclass(frozen=True, kw_only=True)
class LatentWay:
    """How a step is computed; a span of 0 is the package's own choice."""

    tiles: LatentTiles
    span: int = 0

    def __str__(self) -> str:
        tiles = self.tiles
        sizes = f"{tiles.rows}x{tiles.keys} split {tiles.split:4} stages {tiles.num_stages}"
        return f"{sizes} warps {tiles.num_warps} span {self.span or 'auto'}"


def seconds_per_layer(run: Callable[[torch.Tensor], None], layers: list[torch.Tensor]) -> float:
    """Seconds of one layer: a graph of all of them, replayed warm, median."""

    def run_all() -> None:
        for layer in layers:
            run(layer)

    graph = capture_graph(run_all)
    graph.replay()
    seconds: list[float] = []
    while len(seconds) < 3 or (len(seconds) < 8 and sum(seconds) * len(layers) < SECONDS):
        seconds.append(replay_us(graph) / 1e6 / len(layers))
    return statistics.median(seconds)


class Bench:
    """A step's inputs, on so many layers that the L2 cache does not help."""

    def __init__(self, step: LatentStep) -> None:
        self._step = step
        pages = (step.context + step.nodes) // step.page_size + 1
        shape = (step.rows * pages + 1, step.page_size, 1, LATENT + ROPE)
        size = step.rows * pages * step.page_size * (LATENT + ROPE) * 2
        count = max(1, min(20, int(KV_BYTES / size)))
        self._layers = [
            torch.empty(shape, dtype=torch.bfloat16, device=DEVICE).normal_() for _ in range(count)
        ]
        table = torch.zeros(step.rows + 1, pages, dtype=torch.int64, device=DEVICE)
        order = torch.randperm(step.rows * pages, device=DEVICE) + 1
        table[1:] = order.view(step.rows, pages)
        self._views = _trace(step, table)
        tokens = step.rows * step.nodes
        self._query = torch.randn(tokens, step.heads, LATENT + ROPE, device=DEVICE).bfloat16()
        self._out = torch.empty(tokens, step.heads, LATENT, device=DEVICE, dtype=torch.bfloat16)
        self._partials = torch.empty(MOST_PARTIALS, device=DEVICE)

    def seconds(self, way: LatentWay) -> float:
        def run(layer: torch.Tensor) -> None:
            latent.attend_latent_decode(
                self._query,
                layer,
                self._out,
                pages=self._views["out_pages"],
                lengths=self._views["out_lengths"],
                queries=self._views["limits"][:0],
                limits=self._views["limits"],
                tails=self._views["tails"],
                partials=self._partials,
                scale=0.07,
                is_tree=self._step.is_tree,
                tiles=way.tiles,
                span=way.span or None,
            )

        return seconds_per_layer(run, self._layers)


def _trace(step: LatentStep, table: torch.Tensor) -> dict[str, torch.Tensor]:
    tokens = step.rows * step.nodes
    views = {
        "out_pages": torch.empty_like(table[1:], dtype=torch.int32),
        "out_lengths": torch.empty(step.rows, dtype=torch.int32, device=DEVICE),
        "limits": torch.empty(tokens, dtype=torch.int32, device=DEVICE),
        "tails": torch.empty(tokens, 64, dtype=torch.int32, device=DEVICE),
    }
    masks: list[int] = []
    for node in range(step.nodes):
        parent = (node - 1) // 2 if step.is_tree else node - 1
        masks.append(1 << node | (masks[parent] if node else 0))
    rows = torch.arange(1, step.rows + 1, device=DEVICE)
    ancestors = torch.tensor(masks, device=DEVICE).expand(step.rows, step.nodes)
    lengths, nothing = torch.full_like(rows, step.context), views["limits"][:0]
    paths.trace_paths(
        rows, lengths, ancestors, table, queries=nothing, out_queries=nothing, **views
    )
    return views


def show(step: LatentStep, way: LatentWay, seconds: float) -> None:
    print(
        f"  {way!s:52} {seconds * 1e6:9.1f} us  x{seconds / step.read_s:6.2f} of reading"
        f"  x{seconds / step.multiply_s:6.2f} of multiplying",
        flush=True,
    )


def time_step(step: LatentStep, ways: list[LatentWay]) -> None:
    floors = f"reading {step.read_s * 1e6:.1f} us, multiplying {step.multiply_s * 1e6:.1f} us"
    print(f"{step!s}: {floors}", flush=True)
    bench = Bench(step)
    for way in ways:
        try:
            show(step, way, bench.seconds(way))
        except Exception as error:  # one candidate that does not run must not end the sweep
            print(f"  {way!s:52} failed: {str(error).splitlines()[0][:90]}", flush=True)


def own_way(step: LatentStep) -> LatentWay:
    return LatentWay(tiles=latent.latent_tiles(step.heads, LATENT, torch.bfloat16))


def other_ways(step: LatentStep) -> list[LatentWay]:
    """Other spans of splits, then other tiles."""
    own = own_way(step).tiles
    keys = step.context + step.nodes
    spans = [way.span for way in latent_slices.ways_to_slice(keys, own.split, room=1 << 30)]
    tiles = [
        replace(own, split=own.split // 2),
        replace(own, split=own.split * 2),
        replace(own, keys=32, num_stages=3),
    ]
    if step.heads <= 32:
        tiles += [replace(own, rows=16), replace(own, rows=32)]
    else:
        tiles.append(replace(own, keys=32, num_stages=4))
    return [
        *(LatentWay(tiles=own, span=span) for span in spans),
        *(LatentWay(tiles=each) for each in tiles),
    ]


def steps_to_time() -> list[LatentStep]:
    shapes = [(128, 1), (128, 2), (128, 4), (16, 1), (16, 6)]
    return [
        LatentStep(heads=heads, nodes=nodes, rows=rows, context=context)
        for heads, nodes in shapes
        for context in (4096, 65536)
        for rows in (1, 32, 128)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the package's own way alone")
    args = parser.parse_args()
    begin = time.perf_counter()
    plain = LatentStep(heads=128, rows=32, context=65536)
    extra = [replace(plain, page_size=64), replace(plain, nodes=4, is_tree=True)]
    for step in [*steps_to_time(), *extra]:
        time_step(step, [own_way(step)])
    print(f"{time.perf_counter() - begin:.0f} s so far, compilation included", flush=True)
    if not args.quick:
        for step in steps_to_time():
            if step.nodes == 1:
                time_step(step, other_ways(step))
    print(f"{time.perf_counter() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
