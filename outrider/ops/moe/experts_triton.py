"""The experts of a mixture as grouped products: every block of tokens has one expert's weights.

Sums run as in `linear_triton.py`: the bits of a row depend on that row only. The outputs of the
experts of a token are added in the order of its routing, never by atomics.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import math
from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops import dependent_launch as overlap
from outrider.ops.linear.code_values_triton import has_assembly
from outrider.ops.linear.dense_tile_triton import dense_product
from outrider.ops.linear.kernel_weight import BLOCK
from outrider.ops.linear.linear_triton import LinearTile
from outrider.ops.linear.quantised_product_triton import quantised_product, weight_arguments
from outrider.ops.moe.expert_gate import NO_BIASES, ExpertBiases
from outrider.ops.moe.expert_stack import ExpertStack, QuantisedExperts
from outrider.ops.moe.gate_form import SWIGLU, ExpertGate
from outrider.ops.moe.routing_triton import ExpertBlocks, align_blocks

_BAND = tl.constexpr(8)  # blocks that read the same columns of their experts side by side
_COMBINED = 1024  # columns per program


@triton.jit(do_not_specialize=["num_blocks", "num_pairs"])
def _grouped_kernel(
    x,  # [num_pairs / PAIRS_PER_ROW, K]
    codes,  # or numbers, [experts, N, K], or [experts, 2 N, K] when gated: gate, then up
    words,  # scales of quantised weights; see `quantised_product`
    zeros,
    factors,
    bias,  # [experts, N], or [experts, 2 N] when gated; not read unless HAS_BIAS
    rows,  # [num_blocks, ROWS] int32
    owners,  # [num_blocks] int32
    out,  # [num_pairs, N]
    num_blocks,
    num_pairs,
    num_lines,  # of all experts
    N,
    K,
    x_stride,
    limit,
    PAIRS_PER_ROW: tl.constexpr,  # of x
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,  # of the weight; half of them are outputs when gated
    DEPTH: tl.constexpr,
    IS_GATED: tl.constexpr,
    IS_LIMITED: tl.constexpr,
    ALPHA: tl.constexpr,  # of the gate
    SHIFT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_EVEN: tl.constexpr,  # N and K are multiples of the tile
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
    KIND: tl.constexpr,  # of the codes of quantised weights, or "dense"
    GROUP: tl.constexpr,
    FORM: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_FACTORS: tl.constexpr,
    COMPILED: tl.constexpr,
):
    # Tensor cores take 64 rows of their first operand: that is the weight unless x has as many.
    # Widened codes are in registers, from where only the first operand can be taken.
    SWAP: tl.constexpr = KIND != "dense" or (COLUMNS >= 64 and ROWS <= 64)
    OUTPUTS: tl.constexpr = COLUMNS // 2 if IS_GATED else COLUMNS
    column_tiles = tl.cdiv(N, OUTPUTS)
    band = tl.program_id(0) // (_BAND * column_tiles) * _BAND
    height = tl.minimum(num_blocks - band, _BAND)
    place = tl.program_id(0) - band * column_tiles
    block = band + place % height
    first = place // height * OUTPUTS
    channel = tl.arange(0, COLUMNS)
    column = first + channel % OUTPUTS
    source = (column + (channel // OUTPUTS) * N).to(tl.int64)
    overlap.wait(PDL)
    owner = tl.load(owners + block)
    if owner < 0:
        return
    pair = tl.load(rows + block * ROWS + tl.arange(0, ROWS))
    is_row = pair < num_pairs
    lines = owner.to(tl.int64) * N * (2 if IS_GATED else 1) + source
    x_line = x + (pair // PAIRS_PER_ROW).to(tl.int64) * x_stride
    is_column = column < N
    if KIND == "dense":
        total = dense_product(
            x_line, is_row, codes, lines, is_column, K, DEPTH, SWAP, IS_EVEN, PRECISION
        )  # fmt: skip
    else:
        total = quantised_product(
            x_line, is_row, codes, words, zeros, factors, lines, is_column, num_lines, 0, K, K,
            1, IS_EVEN, PRECISION, KIND, GROUP, FORM, HAS_ZEROS, HAS_FACTORS, COMPILED,
        )  # fmt: skip
    overlap.release(PDL)
    if SWAP:
        total = total.T
    if HAS_BIAS:
        added = tl.load(bias + lines, mask=is_column, other=0.0).to(tl.float32)
        total = total + added[None, :]
    if IS_GATED:
        halves = tl.permute(tl.reshape(total, (ROWS, 2, OUTPUTS)), (0, 2, 1))
        gate, up = tl.split(halves)
        if IS_LIMITED:
            gate = tl.minimum(gate, limit)
            up = tl.maximum(tl.minimum(up, limit), -limit)
        if SHIFT != 0.0:
            up = up + SHIFT
        total = gate / (1.0 + tl.exp(-gate * ALPHA)) * up
    output = first + tl.arange(0, OUTPUTS)
    at = pair[:, None].to(tl.int64) * N + output[None, :]
    inside = is_row[:, None] & (output < N)[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _combine_kernel(
    outputs,  # [n, TOP_K, width]
    experts,  # [n, TOP_K] int32
    weights,  # [n, TOP_K] float32
    residual,  # [n, width]
    num_experts,
    width,
    residual_stride,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    overlap.begin(PDL)
    at = residual + token * residual_stride + column
    total = tl.zeros([BLOCK], tl.float32)
    for place in tl.static_range(TOP_K):
        pair = token * TOP_K + place
        # The outputs of padding are not computed and may hold NaN.
        is_routed = tl.load(experts + pair) < num_experts
        output = tl.load(outputs + pair * width + column, mask=inside & is_routed, other=0.0)
        total += output.to(tl.float32) * tl.load(weights + pair)
    total += tl.load(at, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, total.to(residual.dtype.element_ty), mask=inside)


def add_experts_(
    x: torch.Tensor,  # [n, hidden]
    experts: torch.Tensor,  # [n, top_k] int32; num_experts for padding
    weights: torch.Tensor,  # [n, top_k] float32
    gate_up: ExpertStack,  # [experts, 2 * intermediate, hidden] gate, then up
    down: ExpertStack,  # [experts, hidden, intermediate]
    residual: torch.Tensor,  # [n, hidden] written
    *,
    gate: ExpertGate = SWIGLU,
    biases: ExpertBiases = NO_BIASES,
) -> None:
    """residual += the weighted sum over each token's experts of down(gate(gate_up x)).

    Biases are added to both projections.
    """
    num_experts, top_k = gate_up.shape[0], experts.shape[1]
    tile = choose_expert_tile(experts.numel(), num_experts, x.element_size())
    blocks = align_blocks(experts, num_experts, tile.rows)
    num_pairs = experts.numel()
    active = multiply_grouped(
        x, gate_up, blocks, tile, num_pairs=num_pairs, gate=gate, bias=biases.gate_up
    )
    outputs = multiply_grouped(
        active, down, blocks, tile, num_pairs=num_pairs, gate=None, bias=biases.down
    )
    num_tokens, width = x.shape
    kernel: Any = _combine_kernel[(num_tokens, triton.cdiv(width, _COMBINED))]
    kernel(
        outputs,
        experts,
        weights,
        residual,
        num_experts,
        width,
        residual.stride(0),
        TOP_K=top_k,
        BLOCK=_COMBINED,
        PDL=overlap.is_on(x),
        **overlap.options(x),
    )


def multiply_grouped(
    x: torch.Tensor,  # [n, in], a row per token or per pair
    weight: ExpertStack,  # [experts, out, in]
    blocks: ExpertBlocks,
    tile: LinearTile,
    *,
    num_pairs: int,
    gate: ExpertGate | None,  # None: there is none
    bias: torch.Tensor,  # [experts, out], or [0]
) -> torch.Tensor:  # [num_pairs, out], or [num_pairs, out / 2] when gated
    """The row of every pair times the weight of its expert; public for benchmarks."""
    num_blocks, (num_experts, lines, inputs) = blocks.owners.shape[0], weight.shape
    # One stack may be quantised and the other not: ranks cut inside of groups, which are widened.
    depth = BLOCK if isinstance(weight, QuantisedExperts) else tile.depth
    is_gated, form = gate is not None, gate or SWIGLU
    has_bias = bias.numel() > 0
    size = lines // (2 if is_gated else 1)
    outputs = tile.columns // (2 if is_gated else 1)
    out = torch.empty((num_pairs, size), dtype=x.dtype, device=x.device)
    kernel: Any = _grouped_kernel[(triton.cdiv(size, outputs) * num_blocks,)]
    kernel(
        x=x, bias=bias if has_bias else x, rows=blocks.rows, owners=blocks.owners, out=out,
        num_blocks=num_blocks, num_pairs=num_pairs, num_lines=num_experts * lines,
        N=size, K=inputs, x_stride=x.stride(0), limit=form.limit,
        PAIRS_PER_ROW=num_pairs // x.shape[0],
        ROWS=tile.rows, COLUMNS=tile.columns, DEPTH=depth,
        IS_GATED=is_gated,
        IS_LIMITED=is_gated and form.limit < math.inf,
        ALPHA=form.alpha, SHIFT=form.shift, HAS_BIAS=has_bias,
        IS_EVEN=size % outputs == 0 and inputs % depth == 0,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        PDL=overlap.is_on(x), COMPILED=has_assembly(x),
        num_stages=tile.stages, num_warps=tile.num_warps,
        **_arguments(weight),
        **overlap.options(x),
    )  # fmt: skip
    return out


def _arguments(weight: ExpertStack) -> dict[str, object]:
    """What a kernel is told of weights. Dense ones stand for all parts of quantised ones."""
    if isinstance(weight, QuantisedExperts):
        return weight_arguments(weight.weight)
    parts = dict.fromkeys(("codes", "words", "zeros", "factors"), weight)
    kind = {"KIND": "dense", "GROUP": 0, "FORM": "", "HAS_ZEROS": False, "HAS_FACTORS": False}
    return {**parts, **kind}


def choose_expert_tile(num_pairs: int, num_experts: int, itemsize: int) -> LinearTile:
    """About as many rows as an expert has pairs: fewer read weights twice, more are idle."""
    # TODO(#7): sweep on an H200; these are the tiles of `linear_triton.py` at the same rows.
    each = -(-num_pairs // num_experts)
    if itemsize == 4:  # float32 is for tests, not for speed
        return LinearTile(rows=16 if each <= 16 else 64, columns=32, depth=32, stages=2)
    if each <= 32:
        return LinearTile(rows=16 if each <= 16 else 32, columns=64, depth=128, stages=4)
    if each <= 64:
        return LinearTile(rows=64, columns=128, depth=64, stages=4)
    return LinearTile(rows=128, columns=128, depth=64, stages=4, num_warps=8)
