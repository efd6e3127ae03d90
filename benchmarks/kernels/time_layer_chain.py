"""Times the linear layers of a decoder layer one after another, ours or the library's, under load.

Alone, a product of the library and one of ours may take the same time. In a step, ours start while
the kernel before still runs, and the card may be at its power limit. So the layers run in their
order, over cold weights, long enough for the clock to settle.

Run on a GPU: python -m benchmarks.kernels.time_layer_chain [192,384,512]
"""

import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from benchmarks.kernels.graph_clock import capture_graph, random_bf16
from outrider.ops.linear.linear_triton import linear, linear_plus, linear_swiglu
from outrider.ops.linear.swiglu_triton import swiglu_triton
from outrider.ops.norm_rope.head_norm import NoHeadNorm
from outrider.ops.norm_rope.rms_norm_triton import rms_norm_triton
from outrider.ops.norm_rope.rotary import Rotation
from outrider.ops.norm_rope.rotary_triton import rotate_and_store_triton

HIDDEN, WIDE, HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE = 4096, 14336, 32, 8, 128, 16
LAYERS = 8  # 3.5 GB of weights: several times the L2
BUSY_S, MOST_S = 0.3, 3.0  # of replays before the clock is read, and while it is
READ_CARD = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw.instant", "--format=csv,noheader"]
ROWS = (192, 384, 512)
STD = 0.02  # of weights, as of dummy models: the clock depends on the numbers

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # x, weight


def library_gate(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return swiglu_triton(F.linear(x, weight))


QKV: dict[str, Product] = {"library": F.linear, "ours": linear}
GATE: dict[str, Product] = {"library": library_gate, "ours": linear_swiglu}


@dataclass(frozen=True)
class LayerWeights:
    qkv: torch.Tensor
    output: torch.Tensor
    gate: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True)
class LoadedClock:
    """What a layer took while the card was busy."""

    layer_us: float
    card: str  # clock and power


class LayerChain:
    """Owns the weights, and the inputs of one number of rows."""

    def __init__(self, weights: Sequence[LayerWeights], rows: int) -> None:
        self._weights = weights
        self._stream = random_bf16(rows, HIDDEN)
        self._read = random_bf16(rows, HIDDEN)  # in place of the output of attention
        self._scale = random_bf16(HIDDEN)
        self._rotation = Rotation(random_bf16(rows, 1, HEAD_DIM), random_bf16(rows, 1, HEAD_DIM))
        self._pool = random_bf16(rows // PAGE_SIZE + 2, PAGE_SIZE, 2 * KV_HEADS, HEAD_DIM)
        self._slots = torch.randperm(rows, device="cuda") + PAGE_SIZE

    def run(self, qkv: Product, gate: Product) -> None:
        """All layers, each with its norms and its rotation, without attention."""
        stream = self._stream.clone()
        for each in self._weights:
            heads = qkv(rms_norm_triton(stream, self._scale, 1e-5), each.qkv)
            heads = heads.view(len(stream), HEADS + 2 * KV_HEADS, HEAD_DIM)
            rotate_and_store_triton(heads, self._rotation, NoHeadNorm(), self._pool, self._slots)
            stream = linear_plus(self._read, each.output, stream)
            feed = gate(rms_norm_triton(stream, self._scale, 1e-5), each.gate)
            stream = linear_plus(feed, each.down, stream)

    def differing(self, weight: torch.Tensor, products: dict[str, Product]) -> int:
        """Outputs in which the library and our kernel differ."""
        theirs, ours = (product(self._stream, weight) for product in products.values())
        return int((theirs != ours).sum())


def make_weights() -> list[LayerWeights]:
    def matrix(size: int, depth: int) -> torch.Tensor:
        return random_bf16(size, depth).mul_(STD)

    width = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    return [
        LayerWeights(
            qkv=matrix(width, HIDDEN),
            output=matrix(HIDDEN, HIDDEN),
            gate=matrix(2 * WIDE, HIDDEN),
            down=matrix(HIDDEN, WIDE),
        )
        for _ in range(LAYERS)
    ]


def loaded_clock(graph: torch.cuda.CUDAGraph) -> LoadedClock:
    """Replay for `BUSY_S` seconds, until the clock has settled, and then until it is read."""
    _replay_while(graph, lambda seconds: seconds < BUSY_S)
    reader = subprocess.Popen(READ_CARD, stdout=subprocess.PIPE, text=True)
    replay_us = _replay_while(graph, lambda seconds: seconds < MOST_S and reader.poll() is None)
    card, _ = reader.communicate(timeout=MOST_S)
    return LoadedClock(layer_us=replay_us / LAYERS, card=card.strip())


def _replay_while(graph: torch.cuda.CUDAGraph, goes_on: Callable[[float], bool]) -> float:
    """Microseconds of a replay."""
    began, num, seconds = time.perf_counter(), 0, 0.0
    while goes_on(seconds):
        for _ in range(20):
            graph.replay()
        torch.cuda.synchronize()
        num, seconds = num + 20, time.perf_counter() - began
    return seconds * 1e6 / num


def time_rows(weights: Sequence[LayerWeights], rows: int) -> None:
    chain = LayerChain(weights, rows)
    for (qkv, product), (gate, gated) in itertools.product(QKV.items(), GATE.items()):
        clock = loaded_clock(capture_graph(partial(chain.run, product, gated)))
        print(f"{rows:4}  {qkv:8} {gate:8} {clock.layer_us:10.1f}  {clock.card}", flush=True)
    others = chain.differing(weights[0].qkv, QKV), chain.differing(weights[0].gate, GATE)
    print(f"{rows:4}  outputs that differ: qkv {others[0]}, gate {others[1]}", flush=True)


def main() -> None:
    weights = make_weights()
    print("rows  qkv      gate     us a layer  clock and power")
    for rows in [int(word) for word in sys.argv[1].split(",")] if sys.argv[1:] else ROWS:
        time_rows(weights, rows)


if __name__ == "__main__":
    main()
