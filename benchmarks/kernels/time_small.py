"""Times the layers of a small model: with separate kernels, and with fused linears.

One CUDA graph holds all layers over cold weights, overlapped as in the engine. First each fused
linear is timed with every tile in place of its separate kernels; then whole layers with attention.

Run on a GPU: python -m benchmarks.kernels.time_small 1,8,16,64
"""

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

from benchmarks.kernels.graph_clock import graph_us, random_bf16
from outrider.ops.attention.attention_rule import AttentionRule
from outrider.ops.attention.decode_triton import attend_decode
from outrider.ops.linear.linear_triton import linear, linear_plus, linear_swiglu
from outrider.ops.linear.qkv_projection_triton import qkv_projection_triton
from outrider.ops.linear.small_linear_triton import (
    CHOSEN,
    SmallTile,
    normed_swiglu_triton,
    small_plus,
)
from outrider.ops.norm_rope.head_norm import NoHeadNorm
from outrider.ops.norm_rope.rms_norm import RmsNorm
from outrider.ops.norm_rope.rms_norm_triton import rms_norm_triton
from outrider.ops.norm_rope.rotary import Rotation
from outrider.ops.norm_rope.rotary_triton import rotate_and_store_triton

LAYERS, HIDDEN, WIDE, HEADS, KV_HEADS, HEAD_DIM = 30, 576, 1536, 9, 3, 64
PAGE_SIZE, CONTEXT, EPS = 16, 192, 1e-5
COPIES = 3  # of all layers: 190 MB of weights each, so none is in the cache when it comes again


def random(*shape: int) -> torch.Tensor:
    return random_bf16(*shape).mul_(shape[-1] ** -0.5)


class SmallLayer:
    """Weights of one layer, and its KV."""

    def __init__(self, rows: int) -> None:
        self.norms = torch.ones(2, HIDDEN, dtype=torch.bfloat16, device="cuda")
        self.qkv = random((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN)
        self.o = random(HIDDEN, HIDDEN)
        self.gate = random(2 * WIDE, HIDDEN)
        self.down = random(HIDDEN, WIDE)
        self.kv = random(rows * CONTEXT // PAGE_SIZE + 1, PAGE_SIZE, 2 * KV_HEADS, HEAD_DIM)


class SmallStep:
    """What all layers of one step share: one node per row, a context within one split."""

    def __init__(self, rows: int) -> None:
        pages = CONTEXT // PAGE_SIZE
        self.rotation = Rotation(random(rows, 1, HEAD_DIM), random(rows, 1, HEAD_DIM))
        self.pages = (torch.arange(rows * pages, dtype=torch.int32, device="cuda") + 1).view(
            rows, pages
        )
        self.lengths = torch.full((rows,), CONTEXT - 1, dtype=torch.int32, device="cuda")
        self.limits = self.lengths + 1
        self.tails = torch.zeros((rows, 64), dtype=torch.int32, device="cuda")
        self.partials = torch.empty(0, device="cuda")
        self.slots = self.pages[:, -1].long() * PAGE_SIZE + PAGE_SIZE - 1
        self.none = random(1)[:0]

    def attend(self, queries: torch.Tensor, layer: SmallLayer) -> torch.Tensor:
        out = torch.empty(queries.shape, dtype=queries.dtype, device="cuda")
        attend_decode(
            queries,
            layer.kv,
            out,
            pages=self.pages,
            lengths=self.lengths,
            queries=self.limits[:0],
            limits=self.limits,
            tails=self.tails,
            partials=self.partials,
            rule=AttentionRule(scale=HEAD_DIM**-0.5),
            is_tree=False,
        )
        return out.flatten(1)


Part = Callable[[torch.Tensor, SmallLayer, SmallStep, SmallTile], torch.Tensor]


def apart_heads(x: torch.Tensor, layer: SmallLayer, step: SmallStep) -> torch.Tensor:
    heads = linear(rms_norm_triton(x, layer.norms[0], EPS), layer.qkv).view(
        x.shape[0], -1, HEAD_DIM
    )
    rotate_and_store_triton(heads, step.rotation, NoHeadNorm(), layer.kv, step.slots)
    return heads[:, :HEADS]


def fused_heads(
    x: torch.Tensor, layer: SmallLayer, step: SmallStep, tile: SmallTile
) -> torch.Tensor:
    norm = RmsNorm(layer.norms[0], EPS)
    return qkv_projection_triton(
        x, norm, layer.qkv, step.none, step.rotation, layer.kv, step.slots, tile=tile
    )


def apart_gate(x: torch.Tensor, layer: SmallLayer) -> torch.Tensor:
    return linear_swiglu(rms_norm_triton(x, layer.norms[1], EPS), layer.gate)


def fused_gate(
    x: torch.Tensor, layer: SmallLayer, step: SmallStep, tile: SmallTile
) -> torch.Tensor:
    del step
    return normed_swiglu_triton(x, RmsNorm(layer.norms[1], EPS), layer.gate, tile=tile)


FUSED: dict[str, Part] = {
    "heads": fused_heads,
    "gate": fused_gate,
    "o": lambda x, layer, _, tile: small_plus(x, layer.o, x, tile=tile),
    "down": lambda x, layer, _, tile: small_plus(x, layer.down, x[:, :HIDDEN], tile=tile),
}


def tiles(name: str) -> Iterator[SmallTile]:
    """Tiles that compile without spilling; a longer row takes more registers."""
    for columns, num_warps in itertools.product((16, 32), (4, 8)):
        if name != "down" or (columns, num_warps) == (32, 8):
            yield SmallTile(columns=columns, num_warps=num_warps)


def whole_layer(
    x: torch.Tensor, layer: SmallLayer, step: SmallStep, chosen: dict[str, SmallTile | None]
) -> torch.Tensor:
    """One layer; a part without a tile uses separate kernels."""

    def plus(name: str, y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        tile = chosen[name]
        return small_plus(y, weight, x, tile=tile) if tile else linear_plus(y, weight, x)

    heads, gate = chosen["heads"], chosen["gate"]
    queries = fused_heads(x, layer, step, heads) if heads else apart_heads(x, layer, step)
    x = plus("o", step.attend(queries, layer), layer.o)
    return plus(
        "down", fused_gate(x, layer, step, gate) if gate else apart_gate(x, layer), layer.down
    )


def chain_us(
    layers: list[SmallLayer], step: SmallStep, x: torch.Tensor, chosen: dict[str, SmallTile | None]
) -> float:
    """Microseconds of one layer, inside a chain in which each reads what the last one wrote."""

    def run() -> torch.Tensor:
        stream = x
        for layer in layers:
            stream = whole_layer(stream, layer, step, chosen)
        return stream

    return graph_us(run) / len(layers)


def warm(rows: int, layer: SmallLayer, step: SmallStep) -> None:
    """Compile everything, in parallel."""
    x, wide = random(rows, HIDDEN), random(rows, WIDE)
    jobs = [
        (fused, wide if name == "down" else x, tile)
        for name, fused in FUSED.items()
        for tile in tiles(name)
    ]
    with ThreadPoolExecutor(14) as pool:
        list(pool.map(lambda job: job[0](job[1], layer, step, job[2]), jobs))
    torch.cuda.synchronize()


def sweep(rows: int) -> None:
    start = time.perf_counter()
    layers, step = [SmallLayer(rows) for _ in range(LAYERS * COPIES)], SmallStep(rows)
    x = random(rows, HIDDEN)
    warm(rows, layers[0], step)
    chosen: dict[str, SmallTile | None] = dict.fromkeys(FUSED)
    print(f"{rows} rows: apart {chain_us(layers, step, x, chosen):.2f} us a layer")
    default: dict[str, SmallTile | None] = dict.fromkeys(FUSED, CHOSEN)
    print(f"    all fused as chosen now {chain_us(layers, step, x, default):.2f} us")
    # For each part in turn: the tile that is fastest with the tiles of the other parts.
    for name in ("gate", "heads", "o", "down"):
        options: list[SmallTile | None] = [None, *tiles(name)]
        timed = [(chain_us(layers, step, x, {**chosen, name: tile}), tile) for tile in options]
        apart = timed[0][0]
        timed.sort(key=lambda pair: pair[0])
        chosen = {**chosen, name: timed[0][1]}
        print(f"  {name}: apart {apart:.2f} us a layer")
        for us, tile in timed[:4]:
            print(f"    {us:.2f} us {tile}", flush=True)
    print(f"  best together {chain_us(layers, step, x, chosen):.2f} us a layer")
    print(f"  ({time.perf_counter() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    for count in (int(word) for word in (sys.argv[1:] or ["1,8,16,64"])[0].split(",")):
        sweep(count)
