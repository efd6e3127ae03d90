"""The sum of a tile over the inputs of a quantised weight, whose codes are widened in registers.

A number is widened to float32, multiplied by its scale, and rounded once to the type of the
activations. So a product has the bits of the same product with a dense weight of that type. Both
kernels that multiply by weights use it: `linear_triton.py` and `experts_triton.py`.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl

from outrider.ops.linear.kernel_weight import NIBBLE_BLOCK, DeviceWeight, KernelWeight

_E2M1_TO_FLOAT = tl.constexpr(2.0**126)  # moves the exponent of shifted e2m1 bits to its place
_DENSE: dict[str, str | int | bool] = {
    "KIND": "dense",
    "GROUP": 0,
    "FORM": "float32",
    "HAS_ZEROS": False,
    "HAS_FACTORS": False,
}
_LEAST_POWER = tl.constexpr(2.0**-127)  # e8m0 0


@triton.jit
def quantised_product(
    x_line,  # [ROWS] pointers to rows of x
    is_row,  # [ROWS]
    codes,  # [num_lines, K], or [num_lines, blocks of K / 2 bytes] for 4 bits
    words,  # of scales, [groups, num_lines], or one for four groups
    zeros,  # [groups, num_lines]
    factors,  # [num_lines]
    line,  # [COLUMNS] int64
    is_line,  # [COLUMNS]
    num_lines,
    K,
    DEPTH: tl.constexpr,
    SWAP: tl.constexpr,
    IS_EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
    KIND: tl.constexpr,
    GROUP: tl.constexpr,
    FORM: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_FACTORS: tl.constexpr,
):  # [COLUMNS, ROWS] if SWAP, else [ROWS, COLUMNS], float32
    HAS_NIBBLES: tl.constexpr = KIND == "int4" or KIND == "e2m1"
    WIDTH: tl.constexpr = DEPTH // 2 if HAS_NIBBLES else DEPTH  # bytes of a tile's line
    ROWS: tl.constexpr = x_line.shape[0]
    COLUMNS: tl.constexpr = line.shape[0]
    place = tl.arange(0, WIDTH)
    stride = tl.cdiv(K, DEPTH) * WIDTH if HAS_NIBBLES else K
    at = codes + line[:, None] * stride + place[None, :]
    x_at = x_line[:, None] + place[None, :]
    total = tl.zeros((COLUMNS, ROWS) if SWAP else (ROWS, COLUMNS), tl.float32)
    for k in range(0, K, DEPTH):
        if IS_EVEN:
            stored = tl.load(at)
        elif HAS_NIBBLES:  # the last block is padded
            stored = tl.load(at, mask=is_line[:, None], other=0)
        else:
            inside = is_line[:, None] & (place < K - k)[None, :]
            stored = tl.load(at, mask=inside, other=0.0)
        at += WIDTH
        for half in tl.static_range(2 if HAS_NIBBLES else 1):
            first = k + half * WIDTH
            if IS_EVEN:
                a = tl.load(x_at + first, mask=is_row[:, None], other=0.0)
            else:
                inside = is_row[:, None] & (place < K - first)[None, :]
                a = tl.load(x_at + first, mask=inside, other=0.0)
            w = _widen_tile(
                _code_values(stored, half, KIND),
                words,
                zeros,
                factors,
                line,
                is_line,
                first,
                K,
                num_lines,
                KIND,
                GROUP,
                FORM,
                HAS_ZEROS,
                HAS_FACTORS,
            ).to(a.dtype)
            if SWAP:
                total = tl.dot(w, a.T, total, input_precision=PRECISION)
            else:
                total = tl.dot(a, w.T, total, input_precision=PRECISION)
    return total


@triton.jit
def _code_values(stored, half: tl.constexpr, KIND: tl.constexpr):
    """The codes of a tile as float32: of 4 bits, those in the low or the high bits of bytes."""
    if KIND == "int4" or KIND == "e2m1":
        code = (stored >> 4) if half == 1 else (stored & 15)
        if KIND == "int4":
            wide = code.to(tl.float32)
        else:  # sign, exponent and mantissa at their places in a float32
            bits = code.to(tl.int32)
            bits = ((bits & 8) << 28) | ((bits & 7) << 22)
            wide = bits.to(tl.float32, bitcast=True) * _E2M1_TO_FLOAT
    else:
        wide = stored.to(tl.float32)
    return wide


@triton.jit
def _widen_tile(
    wide,  # [COLUMNS, WIDTH] float32 codes
    words,
    zeros,
    factors,
    line,
    is_line,
    first,  # input
    K,
    num_lines,
    KIND: tl.constexpr,
    GROUP: tl.constexpr,  # inputs that share a scale; 0: all
    FORM: tl.constexpr,  # of words
    HAS_ZEROS: tl.constexpr,
    HAS_FACTORS: tl.constexpr,
):  # [COLUMNS, WIDTH] float32
    WIDTH: tl.constexpr = wide.shape[1]
    if FORM == "e8m0" or FORM == "e4m3":
        word = _four_scales(words, line, is_line, first, K, num_lines, WIDTH, GROUP)
    else:
        word = _spread(words, line, is_line, first, K, num_lines, WIDTH, GROUP)
    if HAS_ZEROS:
        wide -= _spread(zeros, line, is_line, first, K, num_lines, WIDTH, GROUP).to(tl.float32)
    elif FORM == "float16" or FORM == "bfloat16":
        wide -= (word >> 16).to(tl.float32)
    elif KIND == "int4":
        wide -= 8.0
    step = _widen_word(word, FORM)
    if HAS_FACTORS:
        step *= tl.load(factors + line, mask=is_line, other=0.0)[:, None]
    return wide * step


@triton.jit
def _spread(
    values, line, is_line, first, K, num_lines, WIDTH: tl.constexpr, GROUP: tl.constexpr
):  # [COLUMNS, WIDTH], or [COLUMNS, 1] where the tile has one group
    """The words or zero points of a tile."""
    # Neighbours that share a group: at least one input, at most a whole group or the tile.
    EVERY: tl.constexpr = WIDTH if GROUP == 0 else _neighbours(WIDTH, GROUP)
    if EVERY == WIDTH:
        group = tl.zeros((1,), tl.int64) + (0 if GROUP == 0 else first // GROUP)
        at = values + group * num_lines + line
        spread = tl.load(at, mask=is_line & (first < K), other=0)[:, None]
    else:
        start = first + tl.arange(0, WIDTH // EVERY) * EVERY
        at = values + (start // GROUP)[None, :].to(tl.int64) * num_lines + line[:, None]
        inside = is_line[:, None] & (start < K)[None, :]
        spread = _repeat(tl.load(at, mask=inside, other=0), EVERY)
    return spread


@triton.jit
def _four_scales(
    words, line, is_line, first, K, num_lines, WIDTH: tl.constexpr, GROUP: tl.constexpr
):  # [COLUMNS, WIDTH], or [COLUMNS, 1] where the tile has one group
    """The bytes of a tile's groups, which share one word."""
    place = tl.zeros((1,), tl.int64) + first // (4 * GROUP)
    at = words + place * num_lines + line
    word = tl.load(at, mask=is_line & (first < K), other=0)[:, None]
    if WIDTH <= GROUP:
        scale = (word >> (first // GROUP % 4 * 8)) & 255
    else:
        byte = first // GROUP % 4 + tl.arange(0, WIDTH // GROUP)
        scale = _repeat((word >> (byte * 8)[None, :]) & 255, GROUP)
    return scale


@triton.jit
def _repeat(values, EVERY: tl.constexpr):  # [COLUMNS, n] -> [COLUMNS, n * EVERY]
    """Every value as often, beside itself."""
    COLUMNS: tl.constexpr = values.shape[0]
    NUM: tl.constexpr = values.shape[1]
    repeated = tl.broadcast_to(values[:, :, None], (COLUMNS, NUM, EVERY))
    return tl.reshape(repeated, (COLUMNS, NUM * EVERY))


@triton.constexpr_function
def _neighbours(width, group):
    """The largest power of two that divides both."""
    both = width | group
    return both & -both


@triton.jit
def _widen_word(word, FORM: tl.constexpr):
    """The scale in a word, or a scale of one byte, as float32."""
    if FORM == "float16":
        wide = word.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    elif FORM == "bfloat16":
        wide = (word << 16).to(tl.float32, bitcast=True)
    elif FORM == "e4m3":
        wide = word.to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32)
    elif FORM == "e8m0":  # powers of two: 0 is the least one, 255 is NaN
        power = (word << 23).to(tl.float32, bitcast=True)
        power = tl.where(word == 0, _LEAST_POWER, power)
        wide = tl.where(word == 255, float("nan"), power)
    else:
        wide = word.to(tl.float32, bitcast=True)
    return wide


@triton.jit
def _widen_kernel(
    codes,
    words,
    zeros,
    factors,
    out,  # [num_lines, K]
    num_lines,
    K,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    KIND: tl.constexpr,
    GROUP: tl.constexpr,
    FORM: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_FACTORS: tl.constexpr,
):
    HAS_NIBBLES: tl.constexpr = KIND == "int4" or KIND == "e2m1"
    WIDTH: tl.constexpr = DEPTH // 2 if HAS_NIBBLES else DEPTH
    line = (tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)
    is_line, place = line < num_lines, tl.arange(0, WIDTH)
    stride = tl.cdiv(K, DEPTH) * WIDTH if HAS_NIBBLES else K
    at = codes + line[:, None] * stride + (tl.program_id(1) * WIDTH + place)[None, :]
    is_byte = HAS_NIBBLES | (tl.program_id(1) * WIDTH + place < K)
    stored = tl.load(at, mask=is_line[:, None] & is_byte[None, :], other=0.0)
    for half in tl.static_range(2 if HAS_NIBBLES else 1):
        first = tl.program_id(1) * DEPTH + half * WIDTH
        tile = _widen_tile(
            _code_values(stored, half, KIND),
            words,
            zeros,
            factors,
            line,
            is_line,
            first,
            K,
            num_lines,
            KIND,
            GROUP,
            FORM,
            HAS_ZEROS,
            HAS_FACTORS,
        )
        inside = is_line[:, None] & (first + place < K)[None, :]
        target = out + line[:, None] * K + (first + place)[None, :]
        tl.store(target, tile.to(out.dtype.element_ty), mask=inside)


def widen_triton(weight: KernelWeight, dtype: torch.dtype) -> torch.Tensor:  # [out, in]
    """The numbers of a weight in this type, in the order of its codes."""
    rows, inputs = weight.shape
    out = torch.empty((rows, inputs), dtype=dtype, device=weight.codes.device)
    columns, depth = 32, NIBBLE_BLOCK
    kernel: Any = _widen_kernel[(triton.cdiv(rows, columns), triton.cdiv(inputs, depth))]
    pointers, constants = weight_arguments(weight)
    kernel(*pointers, out, rows, inputs, COLUMNS=columns, DEPTH=depth, **constants)
    return out


def weight_arguments(
    weight: DeviceWeight,
) -> tuple[tuple[torch.Tensor, ...], dict[str, str | int | bool]]:
    """What a kernel is told of a weight: codes, words, zero points and factors, and their kind.

    A dense weight stands for all four: a kernel reads the first only.
    """
    if not isinstance(weight, KernelWeight):
        return (weight,) * 4, _DENSE
    scales = weight.scales
    has_zeros, has_factors = len(scales.zeros) > 0, len(scales.factors) > 0
    pointers = (
        weight.codes,
        scales.words,
        scales.zeros if has_zeros else scales.words,
        scales.factors if has_factors else scales.words,
    )
    return pointers, {
        "KIND": weight.kind,
        "GROUP": scales.group,
        "FORM": scales.form,
        "HAS_ZEROS": has_zeros,
        "HAS_FACTORS": has_factors,
    }
