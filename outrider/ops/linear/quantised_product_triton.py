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
_POWER_ONE = tl.constexpr(127)  # e8m0 of one
_MIDDLE = tl.constexpr(8)  # the zero point of int4 codes that have none of their own


@triton.jit
def quantised_product(
    x_line,  # [ROWS] pointers to rows of x
    is_row,  # [ROWS]
    codes,  # see `kernel_weight.py`
    words,  # of scales, [groups, num_lines], or one for four groups
    zeros,  # [groups, num_lines]
    factors,  # [num_lines]
    line,  # [SLICES * COLUMNS] int64, the same for every slice
    is_line,  # [SLICES * COLUMNS]
    num_lines,
    begin,  # input, a multiple of a block
    size,  # inputs of a slice, likewise unless there is only one; the next slice follows
    K,
    SLICES: tl.constexpr,  # summed side by side, by a warp each
    IS_EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
    KIND: tl.constexpr,
    GROUP: tl.constexpr,
    FORM: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_FACTORS: tl.constexpr,
    COMPILED: tl.constexpr,
):  # [SLICES * COLUMNS, ROWS] float32
    WIDTH: tl.constexpr = block_width(KIND)
    IS_SUMMED: tl.constexpr = is_summed(GROUP)
    COLUMNS: tl.constexpr = line.shape[0] // SLICES
    place = tl.arange(0, WIDTH)
    lines_at = (line // _LINES) * (tl.cdiv(K, _BLOCK) * _LINES * WIDTH) + line % _LINES * WIDTH
    at = codes + lines_at[:, None] + place[None, :]
    start = tl.zeros((SLICES * COLUMNS,), tl.int32) + begin  # input of every line
    if SLICES > 1:
        start += tl.arange(0, SLICES * COLUMNS) // COLUMNS * size
        at += (start // _BLOCK)[:, None] * (_LINES * WIDTH)
    else:  # a number, for addresses that are computed once
        at += begin // _BLOCK * (_LINES * WIDTH)
    x_at, left = _row_places(x_line, begin, size, K, SLICES)
    total = tl.zeros((SLICES * COLUMNS, x_line.shape[0]), tl.float32)
    # Scales of sums are not copied ahead by the compiler, so they are read one block ahead here.
    ahead = tl.zeros((SLICES * COLUMNS,), tl.int32)
    if IS_SUMMED:
        ahead = _block_words(words, line, is_line & (start < K), num_lines, start, GROUP, FORM)
    shared = _output_factors(words, factors, line, is_line, GROUP, FORM, HAS_FACTORS)
    for k in range(0, size, _BLOCK):
        here = at + k // _BLOCK * (_LINES * WIDTH)
        a = _load_rows(x_at + k, is_row, left - k, SLICES, IS_EVEN)
        first, after = start + k, start + k + _BLOCK
        is_inside = is_line
        if IS_EVEN:
            stored = tl.load(here)
        else:  # the last slice may be shorter
            is_inside = is_line & (first < K)
            stored = tl.load(here, mask=is_inside[:, None], other=0.0)
        word = ahead
        if IS_SUMMED:
            is_next = is_line & (k + _BLOCK < size)
            if not IS_EVEN:
                is_next = is_next & (after < K)
            ahead = _block_words(words, line, is_next, num_lines, after, GROUP, FORM)
        w = block_numbers(
            stored, words, zeros, line, is_inside, first, K, num_lines, x_line.dtype.element_ty,
            KIND, GROUP, FORM, HAS_ZEROS, COMPILED,
        )  # fmt: skip
        scale = shared
        if IS_SUMMED:
            scale *= widen_word(byte_of_group(word, first // GROUP, FORM), FORM)
        total += _products(w, a, SLICES, PRECISION) * scale[:, None]
    return total


@triton.jit
def _row_places(x_line, begin, size, K, SLICES: tl.constexpr):
    """Pointers to the first block of every row and slice, and the inputs that are left there."""
    depth = tl.arange(0, _BLOCK)
    if SLICES == 1:
        first = begin + depth[None, :]
        at = x_line[:, None] + first
    else:
        first = begin + tl.arange(0, SLICES)[:, None, None] * size + depth[None, None, :]
        at = x_line[None, :, None] + first
    return at, K - first


@triton.jit
def _load_rows(at, is_row, left, SLICES: tl.constexpr, IS_EVEN: tl.constexpr):
    inside = is_row[:, None] if SLICES == 1 else is_row[None, :, None]
    if not IS_EVEN:
        inside = inside & (left > 0)
    return tl.load(at, mask=inside, other=0.0)


@triton.jit
def _products(w, a, SLICES: tl.constexpr, PRECISION: tl.constexpr):
    """Sums of 128 products: [SLICES * COLUMNS, 128], [SLICES, ROWS, 128] -> [.., ROWS].

    One slice has [ROWS, 128].
    """
    COLUMNS: tl.constexpr = w.shape[0] // SLICES
    ROWS: tl.constexpr = a.shape[len(a.shape) - 2]
    if SLICES == 1 and COLUMNS >= 64 and ROWS >= 16:  # tensor cores take as many at once
        products = tl.dot(w, a.T, input_precision=PRECISION)
    else:
        # Slices are the batch of a product, which warps share out. If codes are smaller than
        # bfloat16, the compiler gives inputs 0, 1, 4, 5, .. of 32 to the first sixteen products of
        # a batch. So they are reordered: the first sixteen inputs come first, as in large tiles.
        w = tl.permute(tl.reshape(w, (SLICES * COLUMNS, 4, 2, 2, 4, 2)), (0, 1, 3, 4, 2, 5))
        a = tl.permute(tl.reshape(a, (SLICES, ROWS, 4, 2, 2, 4, 2)), (0, 1, 2, 4, 5, 3, 6))
        w, a = tl.reshape(w, (SLICES, COLUMNS, _BLOCK)), tl.reshape(a, (SLICES, ROWS, _BLOCK))
        batch = tl.dot(w, tl.permute(a, (0, 2, 1)), input_precision=PRECISION)
        products = tl.reshape(batch, (SLICES * COLUMNS, ROWS))
    return products


@triton.jit
def add_slices(total, SLICES: tl.constexpr):  # [SLICES * COLUMNS, ROWS] -> [COLUMNS, ROWS]
    """The sums of slices, added in order."""
    COLUMNS: tl.constexpr = total.shape[0] // SLICES
    ROWS: tl.constexpr = total.shape[1]
    if SLICES > 1:
        sums = tl.permute(tl.reshape(total, (SLICES, COLUMNS, ROWS)), (1, 2, 0))
        if SLICES == 2:
            a, b = tl.split(sums)
            total = a + b
        else:
            even, odd = tl.split(tl.reshape(sums, (COLUMNS, ROWS, SLICES // 2, 2)))
            total = _four_or_eight(even, odd, SLICES)
    return total


@triton.jit
def _four_or_eight(even, odd, SLICES: tl.constexpr):  # [COLUMNS, ROWS, SLICES / 2] both
    COLUMNS: tl.constexpr = even.shape[0]
    ROWS: tl.constexpr = even.shape[1]
    if SLICES == 4:
        a, c = tl.split(even)
        b, d = tl.split(odd)
        total = a + b + c + d
    else:
        ae, cg = tl.split(tl.reshape(even, (COLUMNS, ROWS, 2, 2)))
        bf, dh = tl.split(tl.reshape(odd, (COLUMNS, ROWS, 2, 2)))
        a, e = tl.split(ae)
        b, f = tl.split(bf)
        c, g = tl.split(cg)
        d, h = tl.split(dh)
        total = a + b + c + d + e + f + g + h
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
        factor = widen_word(tl.load(words + line, mask=is_line, other=0), FORM)
    if HAS_FACTORS:
        factor *= tl.load(factors + line, mask=is_line, other=0.0)
    return factor


@triton.jit
def block_numbers(
    stored, words, zeros, line, is_line,
    first,  # [COLUMNS] input of the block
    K, num_lines,
    TYPE: tl.constexpr, KIND: tl.constexpr, GROUP: tl.constexpr, FORM: tl.constexpr,
    HAS_ZEROS: tl.constexpr, COMPILED: tl.constexpr,
):  # [COLUMNS, 128] of the type  # fmt: skip
    """The codes of a block less zero points, times the scales of groups smaller than a block."""
    IS_POWER: tl.constexpr = FORM == "e8m0 of 32" and KIND != "wide"
    IS_FOLDED: tl.constexpr = GROUP > 0 and not is_summed(GROUP) and KIND != "wide" and not IS_POWER
    HAS_HALVES: tl.constexpr = FORM == "float16" or FORM == "bfloat16"
    beside = tl.zeros((line.shape[0], 1), tl.int32)
    if IS_POWER:  # eight codes of a word share a scale, four scales a word
        word = tl.load(words + first // _BLOCK * num_lines + line, mask=is_line, other=0)
        beside = _bytes_of_words(word)
    elif KIND == "e2m1":
        beside += _POWER_ONE
    elif not IS_FOLDED and KIND != "wide":
        at = line
        if GROUP > 0:
            at += first // GROUP * num_lines
        if HAS_ZEROS:
            beside = tl.load(zeros + at, mask=is_line, other=0)[:, None]
        elif HAS_HALVES:
            beside = (tl.load(words + at, mask=is_line, other=0) >> 16)[:, None]
        elif KIND == "int4":
            beside += _MIDDLE
    values = code_values(stored, beside, TYPE, KIND, COMPILED)
    if not IS_FOLDED and KIND == "int8" and (HAS_ZEROS or HAS_HALVES):
        values = (values.to(tl.float32) - beside.to(tl.float32)).to(TYPE)
    if IS_FOLDED:
        values = _folded(
            values, words, zeros, line, is_line, first, K, num_lines,
            TYPE, KIND, GROUP, FORM, HAS_ZEROS,
        )  # fmt: skip
    return values


@triton.jit
def _bytes_of_words(word):  # [COLUMNS] -> [COLUMNS, 16]
    """The four bytes of every word, four times over.

    Without numbers of places: the compiler would move codes between threads because of them.
    """
    COLUMNS: tl.constexpr = word.shape[0]
    even = tl.join(word & 255, (word >> 16) & 255)
    odd = tl.join((word >> 8) & 255, (word >> 24) & 255)
    four = tl.reshape(tl.join(even, odd), (COLUMNS, 1, 4))
    return tl.reshape(tl.broadcast_to(four, (COLUMNS, 4, 4)), (COLUMNS, 16))


@triton.jit
def _folded(
    values, words, zeros, line, is_line, first, K, num_lines,
    TYPE: tl.constexpr, KIND: tl.constexpr, GROUP: tl.constexpr, FORM: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
):  # [COLUMNS, 128] of the type  # fmt: skip
    word = _spread(words, line, is_line, first, K, num_lines, GROUP, FORM)
    scale = widen_word(word, FORM)
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
    at = first // GROUP // groups_in_a_word(FORM) * num_lines + line
    return tl.load(words + at, mask=is_line, other=0)


@triton.jit
def _spread(
    values, line, is_line, first, K, num_lines, GROUP: tl.constexpr, FORM: tl.constexpr
):  # [COLUMNS, 128] int32
    """The words, bytes of words or zero points of the groups of a block."""
    EVERY: tl.constexpr = _neighbours(_BLOCK, GROUP)
    COLUMNS: tl.constexpr = line.shape[0]
    start = first[:, None] + (tl.arange(0, _BLOCK // EVERY) * EVERY)[None, :]
    group = start // GROUP
    at = (group // groups_in_a_word(FORM)).to(tl.int64) * num_lines + line[:, None]
    word = tl.load(values + at, mask=is_line[:, None] & (start < K), other=0)
    word = byte_of_group(word, group, FORM)
    repeated = tl.broadcast_to(word[:, :, None], (COLUMNS, _BLOCK // EVERY, EVERY))
    return tl.reshape(repeated, (COLUMNS, _BLOCK))


@triton.jit
def byte_of_group(word, group, FORM: tl.constexpr):
    if _is_byte(FORM):
        word = (word >> (group % 4 * 8)) & 255
    return word


@triton.constexpr_function
def is_summed(group):
    """Whether all products of a block share a scale, which multiplies their sum."""
    return group > 0 and group % BLOCK == 0


@triton.constexpr_function
def block_width(kind):
    """Elements of a block of one output."""
    return {"int8": 32, "int4": 16, "e2m1": 16}.get(kind, BLOCK)


@triton.constexpr_function
def _is_byte(form):
    """Whether four scales share a word."""
    return form in ("e8m0", "e8m0 of 32", "e4m3")


@triton.constexpr_function
def _is_exact(form, dtype):
    """Whether codes times scales need no rounding; float16 has too few exponents."""
    return form in ("e8m0", "e4m3") and dtype == tl.bfloat16


@triton.constexpr_function
def groups_in_a_word(form):
    return 4 if form in ("e8m0", "e8m0 of 32", "e4m3") else 1


@triton.constexpr_function
def _neighbours(width, group):
    """The largest power of two that divides both."""
    both = width | group
    return both & -both


@triton.jit
def widen_word(word, FORM: tl.constexpr):
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
