"""Times tiles of the linear kernels against torch's library, inside CUDA graphs over cold weights.

Run on a GPU: python -m benchmarks.kernels.sweep_linear 96,192,384 [llama-8b | smollm2]
"""

import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import torch

from benchmarks.kernels.graph_clock import graph_us, random_bf16
from outrider.ops.linear import bulk_linear_triton as bulk
from outrider.ops.linear import linear_triton as linear
from outrider.ops.linear import specialized_linear_triton as specialized
from outrider.ops.linear import specialized_tiles_triton as tiles_of
from outrider.ops.linear.swiglu_triton import swiglu_triton

BODIES = {
    "llama-8b": {
        "qkv": (6144, 4096),
        "o": (4096, 4096),
        "gate": (28672, 4096),
        "down": (4096, 14336),
        "scores": (128256, 4096),
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
Tile = linear.LinearTile | bulk.BulkTile | tiles_of.SpecializedTile

RESIDUAL = ("o", "down")
COLD_BYTES = 400e6  # of weights in one graph: several times the L2
MOST_SHARED = 215 << 10
PROCESSES = 15


@dataclass(frozen=True)
class LinearCase:
    """One linear of a body, for so many rows."""

    name: str
    size: int
    depth: int
    num_rows: int

    @property
    def options(self) -> dict[str, bool]:
        return {"has_residual": self.name in RESIDUAL, "is_gated": self.name == "gate"}

    def operands(self, copies: int) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
        weights = [random_bf16(self.size, self.depth) for _ in range(copies)]
        x, residual = random_bf16(self.num_rows, self.depth), random_bf16(self.num_rows, self.size)
        return x, weights, residual


def linear_tiles(each: LinearCase) -> list[Tile]:
    rows = each.num_rows
    tiles: list[Tile] = [*(few_rows(rows) if rows <= 64 else many_rows())]
    if rows > 16:
        tiles += bulk_tiles(each)
    return tiles if each.name == "gate" else [*tiles, *specialized_tiles(each)]


def few_rows(num_rows: int) -> Iterator[linear.LinearTile]:
    rows = 16 if num_rows <= 16 else 32 if num_rows <= 32 else 64
    for columns, depth, stages, num_warps in itertools.product(
        (16, 32, 64, 128), (64, 128, 256, 512), (3, 5), (2, 4)
    ):
        if stages * (rows + columns) * depth * 2 <= MOST_SHARED and (
            num_warps == 4 or columns < 64
        ):
            yield linear.LinearTile(
                rows=rows,
                columns=columns,
                depth=depth,
                stages=stages,
                num_warps=num_warps,
            )


def many_rows() -> Iterator[linear.LinearTile]:
    for rows, columns in ((64, 64), (128, 128), (128, 256)):
        yield linear.LinearTile(
            rows=rows, columns=columns, depth=64, stages=4, num_warps=columns // 32
        )


def bulk_tiles(each: LinearCase) -> Iterator[bulk.BulkTile]:
    num = each.num_rows
    heights = (
        [(32, 0)] if num <= 32 else [(64, 0)] if num <= 64 else [(64, 32), (128, 0), (128, 64)]
    )
    heights = [(128, 0), (128, 64), (256, 0)] if num > 128 else heights
    parts = 2 if each.name == "gate" else 1
    for (rows, more), columns, num_warps in itertools.product(heights, (64, 128, 256), (4, 8)):
        area, most = (rows + more) * columns, MOST_SHARED // ((rows + more + columns) * 128)
        if not 64 * 32 <= area // (num_warps // 4) <= 128 * 192 or columns // parts < 64:
            continue
        for stages in sorted({min(most, 8), min(most, 5), min(most, 3)}):
            yield bulk.BulkTile(
                rows=rows, more=more, columns=columns, stages=stages, num_warps=num_warps
            )


def specialized_tiles(each: LinearCase) -> Iterator[tiles_of.SpecializedTile]:
    if each.depth < tiles_of.LEAST_DEPTH:
        return
    heights = [(16, 0), (32, 0), (32, 16), (64, 0), (64, 16), (64, 32)]
    heights += [(128, 0), (128, 32), (128, 64), (256, 0)]
    fitting = [(a, b) for a, b in heights if each.num_rows <= 4 * (a + b) and a < 2 * each.num_rows]
    for (rows, more), columns, depth in itertools.product(fitting, (64, 128), (64, 128)):
        stages = min(tiles_of.MOST_BYTES // ((rows + more + columns) * depth * 2), 12)
        if stages >= 3 and (rows + more) * columns <= 128 * 192:
            yield tiles_of.SpecializedTile(
                rows=rows, more=more, columns=columns, depth=depth, stages=stages
            )


def launch(
    each: LinearCase,
    x: torch.Tensor,  # [rows, depth]
    weight: torch.Tensor,  # [size, depth]
    residual: torch.Tensor,  # [rows, size]
    tile: Tile,
) -> torch.Tensor:
    if isinstance(tile, bulk.BulkTile):
        return bulk.launch_bulk(x, weight, residual, tile=tile, **each.options)
    if isinstance(tile, tiles_of.SpecializedTile):
        has_residual = each.options["has_residual"]
        return specialized.launch_specialized(
            x, weight, residual, tile=tile, has_residual=has_residual
        )
    return linear.launch_linear(x, weight, residual, tile=tile, **each.options)


def launch_all(
    each: LinearCase,
    x: torch.Tensor,
    weights: list[torch.Tensor],
    residual: torch.Tensor,
    tile: Tile,
) -> None:
    for weight in weights:
        launch(each, x, weight, residual, tile)


def library(
    each: LinearCase, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor
) -> torch.Tensor:
    """The same product by torch."""
    if each.name == "gate":
        return swiglu_triton(torch.nn.functional.linear(x, weight))
    if each.name not in RESIDUAL:
        return torch.nn.functional.linear(x, weight)
    return residual.addmm_(x, weight.t())


def compile_some(each: LinearCase, first: int) -> list[Tile]:
    """Compile some of the tiles into the cache on disk; returns those that run."""
    x, (weight,), residual = each.operands(1)
    good = []
    for tile in linear_tiles(each)[first::PROCESSES]:
        try:
            launch(each, x, weight, residual, tile)
            torch.cuda.synchronize()
            good.append(tile)
        except Exception as error:
            print(each.name, tile, str(error)[:80])
    return good


def chosen(each: LinearCase) -> Tile:
    """The tile that the engine chooses."""
    if each.name != "gate" and tiles_of.specialized_pays(each.num_rows, each.size, each.depth):
        return tiles_of.choose_specialized_tile(each.num_rows, each.size)
    if bulk.bulk_pays(each.num_rows, each.size):
        is_gated = each.options["is_gated"]
        return bulk.choose_bulk_tile(each.num_rows, each.size, is_gated=is_gated)
    return linear.choose_linear_tile(each.num_rows, each.size, each.depth, 2)


def sweep(each: LinearCase, tiles: list[Tile]) -> None:
    copies = min(60, max(2, int(COLD_BYTES / (each.size * each.depth * 2))))
    x, weights, residual = each.operands(copies)
    theirs = graph_us(lambda: [library(each, x, w, residual) for w in weights]) / copies
    now = chosen(each)
    ours = []
    for tile in {now, *tiles}:
        run = partial(launch_all, each, x, weights, residual, tile)
        ours.append((graph_us(run) / copies, tile))
    ours.sort(key=lambda pair: pair[0])
    present = next(us for us, tile in ours if tile == now)
    print(f"{each.name} {each.num_rows} rows: library {theirs:.1f} us; now {present:.1f} us {now}")
    for us, tile in ours[:5]:
        print(f"    {us:.1f} us {tile}", flush=True)


def main() -> None:
    body = BODIES[(sys.argv[2:] or ["llama-8b"])[0]]
    rows = [int(word) for word in sys.argv[1].split(",")]
    linears = [LinearCase(name, *shape, num) for num in rows for name, shape in body.items()]
    jobs = [(each, first) for each in linears for first in range(PROCESSES)]
    with get_context("spawn").Pool(PROCESSES) as pool:
        good = pool.starmap(compile_some, jobs, chunksize=1)
    for each in linears:
        found = [tiles for (one, _), tiles in zip(jobs, good, strict=True) if one == each]
        sweep(each, [tile for tiles in found for tile in tiles])


if __name__ == "__main__":
    main()
