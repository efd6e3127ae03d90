"""Times one layer's mixture of experts inside a CUDA graph over cold weights, beside its floor.

The floor reads every selected expert once, or multiplies at the matrix rate, whichever takes
longer. Run on a GPU: python -m benchmarks.kernels.time_experts [--sweep]
Published precisions of DeepSeek-V4: python -m benchmarks.kernels.time_experts --quantised
"""

import itertools
import statistics
import sys
from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.kernels.graph_clock import graph_us, random_bf16
from benchmarks.kernels.quantised_weights import random_codes
from outrider.ops.linear.linear_triton import LinearTile
from outrider.ops.linear.quantised_weight import CodeKind
from outrider.ops.moe.expert_gate import NO_BIASES
from outrider.ops.moe.expert_stack import ExpertStack, QuantisedExperts, stack_codes
from outrider.ops.moe.experts_triton import add_experts_, choose_expert_tile, multiply_grouped
from outrider.ops.moe.gate_form import SWIGLU
from outrider.ops.moe.routing_config import RoutingConfig
from outrider.ops.moe.routing_triton import align_blocks, route_triton

Shape = tuple[int, int, int, int]  # experts, top_k, hidden, intermediate
Weights = tuple[ExpertStack, ExpertStack]  # gate and up, down: [experts, out, in]

SHAPES: dict[str, Shape] = {
    "Mixtral-8x7B": (8, 2, 4096, 14336),
    "Qwen3-30B-A3B": (128, 8, 2048, 768),
    "DeepSeek-V3": (256, 8, 7168, 2048),
}
QUANTISED: dict[str, Shape] = {
    "DeepSeek-V4": (256, 6, 4096, 2048),
    "gpt-oss-120b": (128, 4, 2880, 2880),
}
KINDS: tuple[CodeKind, ...] = ("e4m3", "e2m1")
TOKENS = (1, 4, 16, 32, 64, 128, 512, 2048)
FEW_TOKENS = (1, 8, 32, 64, 128)
BYTES_PER_S, FLOPS_PER_S = 4.8e12, 990e12  # an H200's data sheet, bfloat16
COPIES = (
    4  # runs of the layer in one graph, each with another routing: no expert is still in the L2
)


def make_layer(shape: Shape) -> Weights:
    num_experts, _, hidden, wide = shape
    gate_up = random_bf16(num_experts, 2 * wide, hidden).mul_(0.02)
    return gate_up, random_bf16(num_experts, hidden, wide).mul_(0.02)


def make_quantised(shape: Shape, kind: CodeKind) -> Weights:
    """The same codes for every expert: what they are changes no time."""
    num_experts, _, hidden, wide = shape
    sizes = ((num_experts, 2 * wide, hidden), (num_experts, hidden, wide))
    device = torch.device("cuda")
    stacks = (
        stack_codes([random_codes(kind, *size[1:], device=device)] * num_experts, size, device)
        for size in sizes
    )
    gate_up, down = stacks
    assert gate_up is not None
    assert down is not None
    return gate_up, down


def bytes_of(weights: Weights) -> int:
    return sum(each.weight.nbytes if isinstance(each, QuantisedExperts) else each.nbytes
               for each in weights)  # fmt: skip


def route_tokens(num_tokens: int, shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts and weights of tokens that all differ."""
    num_experts, top_k, *_ = shape
    routing = route_triton(
        torch.randn(num_tokens, num_experts, device="cuda"),
        RoutingConfig(top_k=top_k, score="softmax", is_normed=True),
        torch.empty(0, device="cuda"),
        torch.full((num_tokens,), 99, device="cuda"),
        page_size=16,
    )
    return routing.experts, routing.weights


def floor_us(experts: torch.Tensor, shape: Shape, weights: Weights) -> float:
    num_experts, _, hidden, wide = shape
    num_selected: int = torch.unique(experts).numel()
    read_s = num_selected / num_experts * bytes_of(weights) / BYTES_PER_S
    return max(read_s, experts.numel() * 3 * hidden * wide * 2 / FLOPS_PER_S) * 1e6


def time_layer(name: str, shape: Shape, num_tokens: int, weights: Weights) -> float:
    """Microseconds of one layer."""
    gate_up, down = weights
    x = torch.randn(num_tokens, shape[2], device="cuda").bfloat16()
    routings = [route_tokens(num_tokens, shape) for _ in range(COPIES)]
    out = x.clone()

    def run() -> None:
        for experts, shares in routings:
            add_experts_(x, experts, shares, gate_up, down, out)

    us = graph_us(run) / COPIES
    least = statistics.mean(floor_us(experts, shape, weights) for experts, _ in routings)
    print(f"{name:14} {num_tokens:5} tokens  {us:8.1f} us  floor {least:8.1f}  {us / least:5.2f}x")
    return us


def compare(name: str, shape: Shape) -> None:
    """Dense experts, then quantised ones and how much faster they are."""
    held = make_layer(shape)
    dense = [time_layer(f"{name} bf16", shape, count, held) for count in FEW_TOKENS]
    for kind in KINDS:
        held = make_quantised(shape, kind)
        for count, before in zip(FEW_TOKENS, dense, strict=True):
            us = time_layer(f"{name} {kind}", shape, count, held)
            print(f"    {before / us:5.2f}x bf16", flush=True)


def sweep(name: str, num_tokens: int, weights: Weights) -> None:
    """The best tiles of both products."""
    gate_up, down = weights
    shape = SHAPES[name]
    experts, _ = route_tokens(num_tokens, shape)
    x = torch.randn(num_tokens, shape[2], device="cuda").bfloat16()
    active = torch.randn(experts.numel(), shape[3], device="cuda").bfloat16()
    for product, weight, rows in (("gate_up", gate_up, x), ("down", down, active)):
        timed = []
        for tile in (choose_expert_tile(experts.numel(), shape[0], 2), *expert_tiles()):
            blocks = align_blocks(experts, shape[0], tile.rows)

            run = partial(
                multiply_grouped,
                rows,
                weight,
                blocks,
                tile,
                num_pairs=experts.numel(),
                gate=SWIGLU if product == "gate_up" else None,
                bias=NO_BIASES.down,
            )
            try:
                timed.append((graph_us(run), tile))
            except Exception as error:  # too much shared memory
                print("skipped", tile, type(error).__name__)
        print(f"{name} {num_tokens} {product}: chosen {timed[0][0]:.1f} us; best", end=" ")
        print(*(f"{us:.1f} {tile}" for us, tile in sorted(timed, key=lambda t: t[0])[:3]), sep="; ")


def expert_tiles() -> Iterator[LinearTile]:
    for rows, columns, depth, stages, num_warps in itertools.product(
        (16, 32, 64, 128), (64, 128, 256), (64, 128), (3, 4), (4, 8)
    ):
        yield LinearTile(
            rows=rows, columns=columns, depth=depth, stages=stages, num_warps=num_warps
        )


def main() -> None:
    if "--quantised" in sys.argv:
        for name, shape in QUANTISED.items():
            compare(name, shape)
        return
    for name, shape in SHAPES.items():
        held = make_layer(shape)
        for count in TOKENS:
            time_layer(name, shape, count, held)
        if "--sweep" in sys.argv:
            for count in (1, 16, 64, 512, 2048):
                sweep(name, count, held)
        del held


if __name__ == "__main__":
    main()
