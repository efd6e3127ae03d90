"""The sum of a tile over the inputs of a quantised weight, whose codes are widened in registers.

Codes are exact in the type of activations. 128 products are summed from zero, by sixteen and in
order. What all of them share, a scale or a factor of the output, multiplies that sum in float32.
Scales of smaller groups multiply the codes instead, and the result is rounded to the type of
activations; for scales of one byte and bfloat16 that is exact. No tile changes a bit. The kernels
of linear layers and of experts use it.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from outrider.ops.linear.code_values_triton import code_values
from outrider.ops.linear.kernel_weight import BLOCK, LINES, KernelWeight

_BLOCK = tl.constexpr(BLOCK)
_LINES = tl.constexpr(LINES)
_LEAST_POWER = tl.constexpr(2.0**-127)  # e8m0 0
_MIDDLE = tl.constexpr(8)  # the zero point of int4 codes that have none of their own


@triton.jit
def quantised_product(
    x_line,  # [ROWS] pointers to rows of x
    is_row,  # [ROWS]
    codes,  # see `kernel_weight.py`
    words,  # of scales, [groups, num_lines], or one for four groups
    zeros,  # [groups, num_lines]
    factors,  # [num_lines]
    line,  # [COLUMNS] int64
    is_line,  # [COLUMNS]
    num_lines,
    begin,  # inputs, a multiple of a block
    end,
    K,
    IS_EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
    KIND: tl.constexpr,
    GROUP: tl.constexpr,
    FORM: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_FACTORS: tl.constexpr,
    COMPILED: tl.constexpr,
):  # [COLUMNS, ROWS] float32
    WIDTH: tl.constexpr = block_width(KIND)
    IS_SUMMED: tl.constexpr = _is_summed(GROUP)
    place = tl.arange(0, WIDTH)
    depth = tl.arange(0, _BLOCK)
    lines_at = (line // _LINES) * (tl.cdiv(K, _BLOCK) * _LINES * WIDTH) + line % _LINES * WIDTH
    at = codes + lines_at[:, None] + place[None, :]
    x_at = x_line[:, None] + depth[None, :]
    total = tl.zeros((line.shape[0], x_line.shape[0]), tl.float32)
    # Scales of sums are not copied ahead by the compiler, so they are read one block ahead here.
    ahead = tl.zeros((line.shape[0],), tl.int32)
    if IS_SUMMED:
        ahead = _block_words(words, line, is_line & (begin < end), num_lines, begin, GROUP, FORM)
    shared = _output_factors(words, factors, line, is_line, GROUP, FORM, HAS_FACTORS)
    for k in range(begin, end, _BLOCK):
        if IS_EVEN:
            stored = tl.load(at + k // _BLOCK * (_LINES * WIDTH))
            a = tl.load(x_at + k, mask=is_row[:, None], other=0.0)
        else:
            stored = tl.load(at + k // _BLOCK * (_LINES * WIDTH), mask=is_line[:, None], other=0.0)
            inside = is_row[:, None] & (depth < K - k)[None, :]
            a = tl.load(x_at + k, mask=inside, other=0.0)
        word, after = ahead, k + _BLOCK
        if IS_SUMMED:
            ahead = _block_words(
                words, line, is_line & (after < end), num_lines, after, GROUP, FORM
            )
        w = block_numbers(
            stored, words, zeros, line, is_line, k, K, num_lines, x_line.dtype.element_ty,
            KIND, GROUP, FORM, HAS_ZEROS, COMPILED,
        )  # fmt: skip
        scale = shared
        if IS_SUMMED:
            scale *= _widen_word(_byte_of_group(word, k // GROUP, FORM), FORM)
        total += tl.dot(w, a.T, input_precision=PRECISION) * scale[:, None]
    return total


@triton.jit
def _output_factors(
    words, factors, line, is_line,
    GROUP: tl.constexpr, FORM: tl.constexpr, HAS_FACTORS: tl.constexpr,
):  # [COLUMNS] float32  # fmt: skip
    """What multiplies all sums of an output."""
    # Not a constant: the compiler would add to the running sum inside of the product, in another
    # order.
    factor = tl.where(is_line, 1.0, 0.0)
    if GROUP == 0:
        factor = _widen_word(tl.load(words + line, mask=is_line, other=0), FORM)
    if HAS_FACTORS:
        factor *= tl.load(factors + line, mask=is_line, other=0.0)
    return factor


@triton.jit
def block_numbers(
    stored, words, zeros, line, is_line,
    first,  # input of the block
    K, num_lines,
    TYPE: tl.constexpr, KIND: tl.constexpr, GROUP: tl.constexpr, FORM: tl.constexpr,
    HAS_ZEROS: tl.constexpr, COMPILED: tl.constexpr,
):  # [COLUMNS, 128] of the type  # fmt: skip
    """The codes of a block less zero points, times the scales of groups smaller than a block."""
    IS_FOLDED: tl.constexpr = GROUP > 0 and not _is_summed(GROUP) and KIND != "wide"
    HAS_HALVES: tl.constexpr = FORM == "float16" or FORM == "bfloat16"
    zero = tl.zeros((line.shape[0], 1), tl.int32)
    if not IS_FOLDED and KIND != "wide":
        at = line
        if GROUP > 0:
            at += first // GROUP * num_lines
        if HAS_ZEROS:
            zero = tl.load(zeros + at, mask=is_line, other=0)[:, None]
        elif HAS_HALVES:
            zero = (tl.load(words + at, mask=is_line, other=0) >> 16)[:, None]
        elif KIND == "int4":
            zero += _MIDDLE
    values = code_values(stored, zero, TYPE, KIND, COMPILED)
    if not IS_FOLDED and KIND == "int8" and (HAS_ZEROS or HAS_HALVES):
        values = (values.to(tl.float32) - zero.to(tl.float32)).to(TYPE)
    if IS_FOLDED:
        values = _folded(
            values, words, zeros, line, is_line, first, K, num_lines,
            TYPE, KIND, GROUP, FORM, HAS_ZEROS,
        )  # fmt: skip
    return values


@triton.jit
def _folded(
    values, words, zeros, line, is_line, first, K, num_lines,
    TYPE: tl.constexpr, KIND: tl.constexpr, GROUP: tl.constexpr, FORM: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
):  # [COLUMNS, 128] of the type  # fmt: skip
    word = _spread(words, line, is_line, first, K, num_lines, GROUP, FORM)
    scale = _widen_word(word, FORM)
    if _is_exact(FORM, TYPE):
        return values * scale.to(TYPE)
    wide = values.to(tl.float32)
    if HAS_ZEROS:
        wide -= _spread(zeros, line, is_line, first, K, num_lines, GROUP, "int32").to(tl.float32)
    elif FORM == "float16" or FORM == "bfloat16":
        wide -= (word >> 16).to(tl.float32)
    elif KIND == "int4":
        wide -= _MIDDLE
    return (wide * scale).to(TYPE)


@triton.jit
def _block_words(
    words, line, is_line, num_lines, first, GROUP: tl.constexpr, FORM: tl.constexpr
):  # [COLUMNS] int32
    """The words with the scales of the block that begins at this input."""
    at = first // GROUP // _groups_in_a_word(FORM) * num_lines + line
    return tl.load(words + at, mask=is_line, other=0)


@triton.jit
def _spread(
    values, line, is_line, first, K, num_lines, GROUP: tl.constexpr, FORM: tl.constexpr
):  # [COLUMNS, 128] int32
    """The words, bytes of words or zero points of the groups of a block."""
    EVERY: tl.constexpr = _neighbours(_BLOCK, GROUP)
    COLUMNS: tl.constexpr = line.shape[0]
    start = first + tl.arange(0, _BLOCK // EVERY) * EVERY
    group = start // GROUP
    at = (group // _groups_in_a_word(FORM)).to(tl.int64)[None, :] * num_lines + line[:, None]
    word = tl.load(values + at, mask=is_line[:, None] & (start < K)[None, :], other=0)
    word = _byte_of_group(word, group[None, :], FORM)
    repeated = tl.broadcast_to(word[:, :, None], (COLUMNS, _BLOCK // EVERY, EVERY))
    return tl.reshape(repeated, (COLUMNS, _BLOCK))


@triton.jit
def _byte_of_group(word, group, FORM: tl.constexpr):
    if _is_byte(FORM):
        word = (word >> (group % 4 * 8)) & 255
    return word


@triton.constexpr_function
def _is_summed(group):
    """Whether all products of a block share a scale, which multiplies their sum."""
    return group > 0 and group % BLOCK == 0


@triton.constexpr_function
def block_width(kind):
    """Elements of a block of one output."""
    return {"int8": 32, "int4": 16, "e2m1": 16}.get(kind, BLOCK)


@triton.constexpr_function
def _is_byte(form):
    """Whether four scales share a word."""
    return form in ("e8m0", "e4m3")


@triton.constexpr_function
def _is_exact(form, dtype):
    """Whether codes times scales need no rounding; float16 has too few exponents."""
    return form in ("e8m0", "e4m3") and dtype == tl.bfloat16


@triton.constexpr_function
def _groups_in_a_word(form):
    return 4 if form in ("e8m0", "e4m3") else 1


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


def code_arguments(weight: KernelWeight) -> dict[str, object]:
    """What a kernel is told of codes and of the scales of their groups."""
    scales, has_zeros = weight.scales, len(weight.scales.zeros) > 0
    return {
        "codes": weight.codes,
        "words": scales.words,
        "zeros": scales.zeros if has_zeros else scales.words,
        "KIND": weight.kind,
        "GROUP": scales.group,
        "FORM": scales.form,
        "HAS_ZEROS": has_zeros,
    }


def weight_arguments(weight: KernelWeight) -> dict[str, object]:
    """What a kernel is told of a weight: the same, and the factors of outputs."""
    factors, has_factors = weight.scales.factors, len(weight.scales.factors) > 0
    parts = {"factors": factors if has_factors else weight.scales.words}
    return {**code_arguments(weight), **parts, "HAS_FACTORS": has_factors}
