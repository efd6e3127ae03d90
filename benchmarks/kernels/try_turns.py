"""Does the kernel of `turns_linear_triton.py` end, and with the bits of the other kernel?

The smallest launch comes first. A line is printed before each; one that has not ended after five
seconds is named, and the process ends. For the first run of a changed kernel on a GPU.

Run on a GPU: python -m benchmarks.kernels.try_turns [e4m3,int8,int4,e2m1]
"""

import faulthandler
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

import torch

from benchmarks.kernels.graph_clock import capture_graph, random_bf16
from benchmarks.kernels.quantised_weights import random_codes
from outrider.ops.linear import quantised_linear_triton as kernels
from outrider.ops.linear.kernel_weight import kernel_weight
from outrider.ops.linear.quantised_weight import CodeKind
from outrider.ops.linear.turns_tiles_triton import TurnsTile, choose_turns_tile, fits_turns

LIMIT_S = 5.0  # of a launch on the GPU
HOST_LIMIT_S = 60  # of all that the host does for one instance, compiling included
IN_A_ROW = 20  # launches that may overlap


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One product: residual and gate are its epilogue, no stages are as many as there is room."""

    kind: CodeKind
    lines: int
    inputs: int
    rows: int
    ending: str = ""
    stages: int = 0


def small_instances(kind: CodeKind) -> Iterator[Instance]:
    """One tile; a block, some blocks, slots that are filled again; a second slice; more tiles."""
    tiny = Instance(kind=kind, lines=128, inputs=128, rows=16)
    yield tiny
    yield replace(tiny, inputs=256)
    yield replace(tiny, inputs=896, stages=3)
    yield replace(tiny, inputs=1152, stages=3)
    yield replace(tiny, lines=448, inputs=1152, rows=29, ending="gated")
    yield replace(tiny, lines=192, inputs=160, rows=61, ending="residual")
    yield replace(tiny, lines=448, inputs=1152, rows=125)
    yield replace(tiny, lines=448, inputs=1152, rows=200)
    yield replace(tiny, lines=448, inputs=1152, rows=300)  # slice after slice


def large_instances(kind: CodeKind) -> Iterator[Instance]:
    """Layers of Llama-3.1-8B: more units than cores, and several tiles of rows."""
    layer = Instance(kind=kind, lines=6144, inputs=4096, rows=64)
    yield layer
    yield replace(layer, lines=4096, inputs=14336, rows=128, ending="residual")
    yield replace(layer, lines=28672, rows=128, ending="gated")
    yield replace(layer, lines=28672, rows=512, ending="gated")
    yield replace(layer, rows=700)
    yield replace(layer, lines=4096, inputs=14336, rows=700, ending="residual")


def end_in_time(what: str) -> None:
    """Wait for all launches without a call that may never return."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    begin = time.monotonic()
    while not event.query():  # type: ignore[no-untyped-call]
        if time.monotonic() - begin > LIMIT_S:
            print(f"HANGS: {what}", flush=True)
            os._exit(1)
        time.sleep(0.001)


def launches_of(each: Instance) -> tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]:
    """The product by the other kernel and by this one."""
    codes = random_codes(each.kind, each.lines, each.inputs, device=torch.device("cuda"))
    weight, x = kernel_weight(codes), random_bf16(each.rows, each.inputs)
    has_residual, is_gated = each.ending == "residual", each.ending == "gated"
    assert fits_turns(x, weight, is_gated=is_gated)
    launch = partial(
        kernels.multiply_quantised, x, weight, random_bf16(each.rows, each.lines),
        kernels.no_arrivals(weight), has_residual=has_residual, is_gated=is_gated,
    )  # fmt: skip
    tile = choose_turns_tile(each.rows, weight, has_residual=has_residual)
    turns = TurnsTile(rows=tile.rows, stages=each.stages or tile.stages)
    old = kernels.choose_tile(each.rows, weight, x)
    return partial(launch, tile=old), partial(launch, tile=turns)


def check(each: Instance) -> int:
    """Outputs with other bits: once, then many times in a row, then replayed."""
    old, turns = launches_of(each)
    right = old()
    end_in_time(f"the other kernel before {each}")
    found = [turns()]
    end_in_time(f"the first launch of {each}")
    found += [turns() for _ in range(IN_A_ROW)]
    end_in_time(f"{IN_A_ROW} launches of {each}")
    graph = capture_graph(lambda: found.extend([turns(), turns()]))
    graph.replay()
    end_in_time(f"a graph of {each}")
    return sum(int((one != right).sum()) for one in found)


def main() -> None:
    chosen = sys.argv[1].split(",") if len(sys.argv) > 1 else get_args(CodeKind)
    kinds = [kind for kind in get_args(CodeKind) if kind in chosen]
    instances = [each for make in (small_instances, large_instances) for kind in kinds
                 for each in make(kind)]  # fmt: skip
    begin, total = time.monotonic(), 0
    for number, each in enumerate(instances):
        print(
            f"{time.monotonic() - begin:6.1f} s  {number + 1}/{len(instances)} {each}", flush=True
        )
        faulthandler.dump_traceback_later(HOST_LIMIT_S, exit=True)
        wrong = check(each)
        total += wrong
        if wrong:
            print(f"    {wrong} OUTPUTS WITH OTHER BITS", flush=True)
    faulthandler.cancel_dump_traceback_later()
    print(f"all ended in {time.monotonic() - begin:.1f} s; outputs with other bits: {total}")


if __name__ == "__main__":
    main()
