"""How near are linear layers with quantised weights to the time that reading their bytes takes?

Inside CUDA graphs, over weights larger than L2 together. A layer is one decoder layer of
Llama-3.1-8B: qkv, o with a residual, gate and up with SwiGLU, down with a residual.

Run on a GPU: python -m benchmarks.kernels.time_quantised [1,8,32,64,128]
Sweep tiles:  python -m benchmarks.kernels.time_quantised 1,64 sweep
Forms:        python -m benchmarks.kernels.time_quantised 32,64,128 turns [e4m3,int4]
Many rows:    python -m benchmarks.kernels.time_quantised 256,1024,4096 many [e4m3,int4]
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Literal, get_args

import torch

from benchmarks.kernels.graph_clock import graph_us, random_bf16
from benchmarks.kernels.quantised_weights import random_codes
from benchmarks.kernels.sweep_linear import BODIES, COLD_BYTES, RESIDUAL
from outrider.ops.linear import quantised_linear_triton as kernels
from outrider.ops.linear.kernel_weight import KernelWeight, kernel_weight
from outrider.ops.linear.linear import FixedLinear
from outrider.ops.linear.quantised_linear import QuantisedLinear
from outrider.ops.linear.quantised_weight import CodeKind
from outrider.ops.linear.turns_tiles_triton import TurnsTile, choose_turns_tile
from outrider.ops.linear.widen_codes_triton import widen_codes

BODY = {name: size for name, size in BODIES["llama-8b"].items() if name != "scores"}
BYTES_PER_S = 3.85e12  # the fastest read of weights by a GEMM on an H200
Dense = Literal["bf16"]
ROWS = (1, 8, 32, 64, 128)
Tile = kernels.QuantisedTile | TurnsTile
Launch = Callable[..., torch.Tensor]
DeviceWeight = torch.Tensor | KernelWeight


def make_weight(kind: CodeKind | Dense, size: int, depth: int) -> DeviceWeight:
    if kind == "bf16":
        return random_bf16(size, depth)
    return kernel_weight(random_codes(kind, size, depth, device=torch.device("cuda")))


def copies_of(weight: DeviceWeight) -> list[DeviceWeight]:
    """So many that they do not fit in L2 together."""
    num = min(60, max(2, int(COLD_BYTES / weight.nbytes)))
    if isinstance(weight, KernelWeight):
        return [replace(weight, codes=weight.codes.clone()) for _ in range(num)]
    return [weight.clone() for _ in range(num)]


def run_layer(name: str, weight: DeviceWeight) -> Callable[..., torch.Tensor]:
    """What the engine calls for a linear of this name."""
    if isinstance(weight, KernelWeight):
        layer: QuantisedLinear | FixedLinear = QuantisedLinear(weight)
    else:
        layer = FixedLinear(weight)
    if name in RESIDUAL:
        return layer.plus
    return (lambda x, _: layer.swiglu(x)) if name == "gate" else (lambda x, _: layer(x))


def time_linear(name: str, weights: list[DeviceWeight], num_rows: int) -> float:
    """Microseconds of one product."""
    size, depth = weights[0].shape
    x, residual = random_bf16(num_rows, depth), random_bf16(num_rows, size)
    layers = [run_layer(name, weight) for weight in weights]
    return graph_us(lambda: [layer(x, residual) for layer in layers]) / len(layers)


def time_body(kind: CodeKind | Dense, rows: tuple[int, ...]) -> None:
    total_us, total_bytes = dict.fromkeys(rows, 0.0), 0
    for name, (size, depth) in BODY.items():
        weights = copies_of(make_weight(kind, size, depth))
        total_bytes += weights[0].nbytes
        for num in rows:
            total_us[num] += time_linear(name, weights, num)
    floor_us = total_bytes / BYTES_PER_S * 1e6
    print(f"{kind:6} {total_bytes / 1e6:8.1f} MB a layer, floor {floor_us:6.1f} us")
    for num, us in total_us.items():
        print(f"    {num:4} rows {us / 1e3:8.4f} ms  {us / floor_us:5.2f}x floor", flush=True)


def tiles_of(weight: KernelWeight, x: torch.Tensor) -> Iterator[kernels.QuantisedTile]:
    chosen, (slices, _) = (
        kernels.choose_tile(x.shape[0], weight, x),
        kernels.slices_of(*weight.shape),
    )
    yield chosen
    if chosen.rows == 8:  # a warp for every slice
        for columns, stages in itertools.product((16, 32), (2, 3, 4)):
            yield kernels.QuantisedTile(8, columns, stages, num_warps=slices, slices=slices)
    rows = max(16, chosen.rows)
    for columns, stages in itertools.product((64, 128), (2, 3, 4, 5, 6)):
        yield kernels.QuantisedTile(rows, columns, stages, num_warps=columns // 16)


def sweep(kind: CodeKind, name: str, num_rows: int) -> None:
    """The best tiles of one product."""
    weights = copies_of(make_weight(kind, *BODY[name]))
    first = weights[0]
    assert isinstance(first, KernelWeight)
    x, residual = random_bf16(num_rows, first.shape[1]), random_bf16(num_rows, first.shape[0])
    timed = []
    for tile in dict.fromkeys(tiles_of(first, x)):
        launch = partial(
            kernels.multiply_quantised,
            x,
            residual=residual,
            arrivals=kernels.no_arrivals(first),
            tile=tile,
            has_residual=name in RESIDUAL,
            is_gated=name == "gate",
        )
        try:
            us = graph_us(lambda each=launch: [each(weight=weight) for weight in weights])  # type: ignore[misc]
        except Exception as error:  # too much shared memory, or too many registers
            print("skipped", tile, type(error).__name__)
            continue
        timed.append((us / len(weights), tile))
    print(f"{kind} {name} {num_rows} rows: chosen {timed[0][0]:.1f} us; best", end=" ")
    print(*(f"{us:.1f} {tile}" for us, tile in sorted(timed, key=lambda t: t[0])[:3]), sep="; ")


def forms_of(weight: KernelWeight, num_rows: int, name: str) -> dict[str, Tile]:
    """Tiles of the kernel without turns, and of the one with turns."""
    turns = choose_turns_tile(num_rows, weight, has_residual=name in RESIDUAL)
    old = kernels.choose_tile(num_rows, weight, random_bf16(num_rows, weight.shape[1]))
    return {"old": old, "turns": turns}


def launch_of(name: str, weight: KernelWeight, x: torch.Tensor, tile: Tile) -> Launch:
    return partial(
        kernels.multiply_quantised,
        x,
        residual=torch.ones((len(x), weight.shape[0]), dtype=x.dtype, device=x.device),
        arrivals=kernels.no_arrivals(weight),
        tile=tile,
        has_residual=name in RESIDUAL,
        is_gated=name == "gate",
    )


def check_forms(kind: CodeKind, name: str, num_rows: int) -> None:
    """Print how far the forms are from each other in bits, and from float64."""
    codes = random_codes(kind, *BODY[name], device=torch.device("cuda"))
    weight, numbers = kernel_weight(codes), codes.widen().double()
    x = random_bf16(num_rows, weight.shape[1])
    launches = {
        form: launch_of(name, weight, x, tile)
        for form, tile in forms_of(weight, num_rows, name).items()
    }
    found = {form: launch(weight=weight) for form, launch in launches.items()}
    torch.cuda.synchronize()
    again = {form: launch(weight=weight) for form, launch in launches.items()}
    right = x.double() @ numbers.t()
    if name in RESIDUAL:
        right += 1
    elif name == "gate":
        gate, up = right.chunk(2, dim=1)
        right = torch.nn.functional.silu(gate) * up
    words = [
        f"{form} {int((each != found['old']).sum())} {int((again[form] != each).sum())}"
        f" {float((each.double() - right).abs().max() / right.abs().max()):.1e}"
        for form, each in found.items()
    ]
    print(
        f"{kind} {name} {num_rows} rows, other bits, other bits again, error:",
        *words,
        sep="; ",
        flush=True,
    )


def compare_forms(kind: CodeKind, name: str, rows: tuple[int, ...]) -> dict[int, list[float]]:
    """Microseconds of every form, by rows."""
    weights = copies_of(make_weight(kind, *BODY[name]))
    times: dict[int, list[float]] = {}
    for num_rows in rows:
        assert isinstance(weights[0], KernelWeight)
        x = random_bf16(num_rows, weights[0].shape[1])
        times[num_rows] = []
        for tile in forms_of(weights[0], num_rows, name).values():
            launch = launch_of(name, weights[0], x, tile)
            us = graph_us(lambda each=launch: [each(weight=weight) for weight in weights])  # type: ignore[misc]
            times[num_rows].append(us / len(weights))
    return times


def compare(kinds: list[CodeKind], rows: tuple[int, ...]) -> None:
    """First check all forms, then time them."""
    print("us: old, turns")
    for kind in kinds:
        for name, num in itertools.product(BODY, rows):
            check_forms(kind, name, num)
        totals = {num: [0.0] * 2 for num in rows}
        for name in BODY:
            for num, times in compare_forms(kind, name, rows).items():
                totals[num] = [a + b for a, b in zip(totals[num], times, strict=True)]
                print(f"{kind} {name:5} {num:4} rows:", *(f"{us:6.1f}" for us in times), flush=True)
        for num, times in totals.items():
            print(f"{kind} layer {num:4} rows:", *(f"{us:6.1f}" for us in times), flush=True)


def time_many(kind: CodeKind, rows: tuple[int, ...]) -> None:
    """Many rows: bf16, codes that are widened first, and the forms that widen them in registers."""
    for name, num in itertools.product(BODY, rows):
        weight, dense = make_weight(kind, *BODY[name]), make_weight("bf16", *BODY[name])
        assert isinstance(weight, KernelWeight)
        x = random_bf16(num, weight.shape[1])
        launches = [
            launch_of(name, weight, x, tile) for tile in forms_of(weight, num, name).values()
        ]
        wide = kernels.choose_tile(num, widen_codes(weight, x), x)
        product = launch_of(name, weight, x, wide)
        times = [
            time_linear(name, [dense], num),
            graph_us(lambda: product(weight=widen_codes(weight, x))),  # noqa: B023
            *(graph_us(lambda each=each: each(weight=weight)) for each in launches),  # type: ignore[misc] # noqa: B023
        ]
        rates = [2e-6 * num * weight.shape[0] * weight.shape[1] / us for us in times]
        words = [f"{us:7.1f} ({rate:3.0f})" for us, rate in zip(times, rates, strict=True)]
        print(f"{kind} {name:5} {num:5} rows:", *words, flush=True)


def main() -> None:
    words = sys.argv[1:]
    rows = tuple(int(word) for word in words[0].split(",")) if words else ROWS
    kinds = words[2].split(",") if len(words) > 2 else ["e4m3", "int4"]
    chosen = [kind for kind in get_args(CodeKind) if kind in kinds]
    if "turns" in words:
        compare(chosen, rows)
        return
    if "many" in words:
        print("us (TFLOP/s): bf16, widened first, old, turns")
        for kind in chosen:
            time_many(kind, rows)
        return
    if "sweep" not in words:
        for kind in (*get_args(Dense), *get_args(CodeKind)):
            time_body(kind, rows)
        return
    for kind, name, num in itertools.product(get_args(CodeKind), BODY, rows):
        sweep(kind, name, num)


if __name__ == "__main__":
    main()
