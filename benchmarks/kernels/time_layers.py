"""How fast are norm, rotation with the KV write, and SwiGLU? Llama-3.1-8B sizes, bf16.

Each is timed inside a CUDA graph, a launch at a time over input sets larger than L2 together, so
the microseconds hold launch latency. GB/s counts what must be read and written once.
"""

from collections.abc import Callable

import torch

from benchmarks.kernels.graph_clock import graph_us, random_bf16
from outrider.ops.linear.swiglu_triton import swiglu_triton
from outrider.ops.norm_rope.head_norm import NoHeadNorm, NormEachHead
from outrider.ops.norm_rope.join_normed_triton import join_normed_triton
from outrider.ops.norm_rope.rms_norm import RmsNorm
from outrider.ops.norm_rope.rms_norm_triton import rms_norm_triton
from outrider.ops.norm_rope.rotary import RotaryFrequencies, Rotation
from outrider.ops.norm_rope.rotary_triton import rotate_and_store_triton, rotation_at_triton

HIDDEN, WIDE, HEADS, KV_HEADS, HEAD_DIM = 4096, 14336, 32, 8, 128
PAGE_SIZE, VOCAB, SETS = 16, 32000, 64
ROWS = (1, 8, 64, 512, 8192)
BYTES = 2


def norm(rows: int, sets: int) -> tuple[Callable[[int], object], float]:
    x, weight = random_bf16(sets, rows, HIDDEN), random_bf16(HIDDEN)
    return lambda i: rms_norm_triton(x[i], weight, 1e-5), 2 * rows * HIDDEN * BYTES


def join(rows: int, sets: int) -> tuple[Callable[[int], object], float]:
    state, table = random_bf16(sets, rows, HIDDEN), random_bf16(VOCAB, HIDDEN)
    norms = {
        "embedding_norm": RmsNorm(random_bf16(HIDDEN), 1e-5),
        "hidden_norm": RmsNorm(random_bf16(HIDDEN), 1e-5),
    }
    tokens = torch.randint(0, VOCAB, (sets, rows), device="cuda")
    run = lambda i: join_normed_triton(tokens[i], table, state[i], **norms)  # noqa: E731
    return run, 5 * rows * HIDDEN * BYTES


def angles(rows: int, sets: int) -> tuple[Callable[[int], object], float]:
    positions = torch.randint(0, 131072, (sets, rows), device="cuda")
    radians, signs = torch.rand(HEAD_DIM, device="cuda"), torch.ones(HEAD_DIM, device="cuda")
    frequencies = RotaryFrequencies(radians=radians, signs=signs, scale=1.0, dtype=torch.bfloat16)
    run = lambda i: rotation_at_triton(positions[i], frequencies)  # noqa: E731
    return run, 2 * rows * HEAD_DIM * BYTES


def rotate(rows: int, sets: int, normed: bool = False) -> tuple[Callable[[int], object], float]:
    heads = random_bf16(sets, rows, HEADS + 2 * KV_HEADS, HEAD_DIM)
    layer = random_bf16(rows // PAGE_SIZE + 2, PAGE_SIZE, 2 * KV_HEADS, HEAD_DIM)
    rotation = Rotation(random_bf16(rows, 1, HEAD_DIM), random_bf16(rows, 1, HEAD_DIM))
    slots = torch.randperm(rows, device="cuda") + PAGE_SIZE
    norm = (
        NormEachHead(RmsNorm(random_bf16(HEADS + KV_HEADS, HEAD_DIM), 1e-5))
        if normed
        else NoHeadNorm()
    )
    run = lambda i: rotate_and_store_triton(heads[i], rotation, norm, layer, slots)  # noqa: E731
    return run, 2 * heads[0].numel() * BYTES


def gate(rows: int, sets: int) -> tuple[Callable[[int], object], float]:
    gate_up = random_bf16(sets, rows, 2 * WIDE)
    return lambda i: swiglu_triton(gate_up[i]), 3 * rows * WIDE * BYTES


def microseconds(run: Callable[[int], object], sets: int) -> float:
    """Microseconds of one launch: a graph of `SETS` launches, median over replays."""

    def run_all() -> None:
        for launch in range(SETS):
            run(launch % sets)

    return graph_us(run_all, repeat=10, skip=3) / SETS


def main() -> None:
    cases = {
        "norm": norm,
        "join": join,
        "angles": angles,
        "rotate": rotate,
        "rotate, normed": lambda rows, sets: rotate(rows, sets, normed=True),
        "swiglu": gate,
    }
    print(f"{'kernel':16}" + "".join(f"{f'{rows} rows':>18}" for rows in ROWS))
    for name, case in cases.items():
        cells = []
        for rows in ROWS:
            sets = 4 if rows > 512 else SETS
            run, num_bytes = case(rows, sets)
            us = microseconds(run, sets)
            cells.append(f"{us:7.2f} us {num_bytes / us / 1000:4.0f}GB/s")
        print(f"{name:16}" + "".join(f"{cell:>18}" for cell in cells))


if __name__ == "__main__":
    main()
