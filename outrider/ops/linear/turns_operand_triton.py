"""Codes in shared memory as operands of tensor cores, for `turns_linear_triton.py`.

Every thread reads the codes that its tensor core wants from it, 16 bytes at once.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from outrider.ops.linear.code_values_triton import code_values
from outrider.ops.linear.kernel_weight import BLOCK, LINES
from outrider.ops.linear.quantised_product_triton import byte_of_group, is_summed, widen_word

GROUPS = gl.constexpr(2)  # of multiplying warps
_BLOCK = gl.constexpr(BLOCK)
_LINES = gl.constexpr(LINES)
_MIDDLE = gl.constexpr(8)  # the zero point of int4 codes that have none of their own
_E4M3 = gl.constexpr("""{
.reg .b16 low, high, a, b, c, d;
.reg .b32 ab, cd, fa, fb, fc, fd;
mov.b32 {low, high}, $4;
cvt.rn.f16x2.e4m3x2 ab, low;
cvt.rn.f16x2.e4m3x2 cd, high;
mov.b32 {a, b}, ab;
mov.b32 {c, d}, cd;
cvt.f32.f16 fa, a;
cvt.f32.f16 fb, b;
cvt.f32.f16 fc, c;
cvt.f32.f16 fd, d;
cvt.rn.bf16x2.f32 ab, fb, fa;
cvt.rn.bf16x2.f32 cd, fd, fc;
mov.b32 {$0, $1}, ab;
mov.b32 {$2, $3}, cd;
}""")


@gluon.jit
def part_of_lines(first, part, N, IS_GATED: gl.constexpr):
    """The place of 32 lines of a tile, in units of 32: gates and ups of an output are a pair."""
    if IS_GATED:
        place = first // _LINES + part // 2 + part % 2 * (N // _LINES)
    else:
        place = first // _LINES + part
    return place


@gluon.jit
def _in_product_order(values, IS_GATED: gl.constexpr, IS_TURNED: gl.constexpr):  # [64, X]
    """Lines of a group of warps in the order of outputs of its tensor cores.

    A gate and its up go to one thread. Threads that read at once read from different banks.
    """
    X: gl.constexpr = values.shape[1]
    high: gl.constexpr = (1, 2, 0) if IS_GATED else (0, 1, 2)
    low: gl.constexpr = (4, 5, 3) if IS_TURNED else (3, 4, 5)
    parts = values.reshape((2, 2, 2, 2, 2, 2, X))
    parts = parts.permute((high[0], high[1], high[2], low[0], low[1], low[2], 6))
    return parts.reshape((64, X))


@gluon.jit
def in_line_order(values, IS_GATED: gl.constexpr, IS_TURNED: gl.constexpr):  # [64, X]
    """The reverse of `_in_product_order`."""
    X: gl.constexpr = values.shape[1]
    high: gl.constexpr = (2, 0, 1) if IS_GATED else (0, 1, 2)
    low: gl.constexpr = (5, 3, 4) if IS_TURNED else (3, 4, 5)
    parts = values.reshape((2, 2, 2, 2, 2, 2, X))
    parts = parts.permute((high[0], high[1], high[2], low[0], low[1], low[2], 6))
    return parts.reshape((64, X))


@gluon.constexpr_function
def is_turned(kind):
    """Whether a line of a block fills all banks, so that a line cannot be read with the next."""
    return kind in ("e4m3", "int8")


@gluon.constexpr_function
def _num_words(kind):
    """Words of a block of one output."""
    return 32 if kind in ("e4m3", "int8") else 16


@gluon.constexpr_function
def _line_bases(is_gated, is_turned):
    """Lines of a tile by the register, the lanes and the warps of tensor cores."""
    high = [32, 8, 16] if is_gated else [8, 16, 32]
    return high, [4, 1, 2] if is_turned else [1, 2, 4]


@gluon.constexpr_function
def _code_layout(width, is_gated, is_turned):
    """[64, width]: a thread reads 16 bytes of its outputs at once."""
    high, lanes = _line_bases(is_gated, is_turned)
    registers = [[0, 1], [0, 2], [0, 16]] if width == 32 else [[0, 1], [0, 2]]
    return gl.DistributedLinearLayout(
        reg_bases=[*registers, [high[0], 0]],
        lane_bases=[[0, 4], [0, 8], *([line, 0] for line in lanes)],
        warp_bases=[[line, 0] for line in high[1:]],
        block_bases=[],
        shape=[64, width],
    )


@gluon.jit
def _widened(
    stored,  # [64, WIDTH]
    word,  # [64] int32 of its lines
    TYPE: gl.constexpr,
    KIND: gl.constexpr,
    FORM: gl.constexpr,
):  # [64, 128] of the type
    """The codes of a block less zero points, in the order of lines."""
    HAS_HALVES: gl.constexpr = FORM == "float16" or FORM == "bfloat16"
    if KIND == "e4m3":
        values = _e4m3_values(stored)
    elif KIND == "e2m1":
        values = code_values(stored, _bytes_of(word, stored), TYPE, KIND, True)
    else:
        beside = (word >> 16)[:, None] if HAS_HALVES else (word * 0 + _MIDDLE)[:, None]
        values = code_values(stored, beside, TYPE, KIND, True)
        if KIND == "int8" and HAS_HALVES:
            less = gl.convert_layout(beside.to(gl.float32), values.type.layout, assert_trivial=True)
            values = (values.to(gl.float32) - less).to(TYPE)
    return values


@gluon.jit
def _e4m3_values(words):  # [64, 32] -> [64, 128]
    a, b, c, d = gl.inline_asm_elementwise(
        _E4M3, "=h,=h,=h,=h,r", [words],
        (gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16), is_pure=False, pack=1,
    )  # fmt: skip
    both = gl.join(gl.join(a, b), gl.join(c, d))
    parts = both.reshape((64, 2, 4, 4, 2, 2))  # a, d, b, e, c of `kernel_weight.py`
    return parts.permute((0, 1, 3, 5, 2, 4)).reshape((64, 128))


@gluon.jit
def _bytes_of(word, stored):  # [64] and [64, 16] -> [64, 16]
    """The four bytes of every word, four times over."""
    even = gl.join(word & 255, (word >> 16) & 255)
    odd = gl.join((word >> 8) & 255, (word >> 24) & 255)
    four = gl.join(even, odd).reshape((64, 4))
    of_codes: gl.constexpr = stored.reshape((64, 4, 4)).type.layout
    four = gl.convert_layout(four, gl.SliceLayout(1, of_codes))
    every = gl.expand_dims(four, 1) + gl.zeros((64, 4, 4), gl.int32, of_codes)
    return gl.convert_layout(every.reshape((64, 16)), stored.type.layout, assert_trivial=True)


@gluon.jit
def read_block(
    w_tiles, word_tiles, slot, group, word,
    KIND: gl.constexpr, GROUP: gl.constexpr, IS_GATED: gl.constexpr,
):  # fmt: skip
    """The codes of a block, and the words of its lines."""
    layout: gl.constexpr = _code_layout(_num_words(KIND), IS_GATED, is_turned(KIND))
    at = slot * GROUPS + group
    stored = w_tiles.index(at).load(layout)
    if GROUP > 0:
        word = word_tiles.index(at).load(gl.SliceLayout(1, layout))
    return stored, word


@gluon.jit
def operand_of(
    stored, word, factor, block, of_products: gl.constexpr,
    TYPE: gl.constexpr, KIND: gl.constexpr, GROUP: gl.constexpr, FORM: gl.constexpr,
    IS_GATED: gl.constexpr,
):  # fmt: skip
    """The numbers of a block as an operand, and what multiplies the sums of its products."""
    numbers = _widened(stored, word, TYPE, KIND, FORM)
    numbers = _in_product_order(numbers, IS_GATED, is_turned(KIND))
    operand: gl.constexpr = gl.DotOperandLayout(0, of_products, 2)
    numbers = gl.convert_layout(numbers, operand, assert_trivial=True)
    scale = factor
    if is_summed(GROUP):
        scale *= widen_word(byte_of_group(word, block * _BLOCK // GROUP, FORM), FORM)
    scale = _in_product_order(scale[:, None], IS_GATED, is_turned(KIND)).reshape((64,))
    scale = gl.convert_layout(scale, gl.SliceLayout(1, of_products), assert_trivial=True)
    return numbers, scale


@gluon.jit
def line_words(
    words, factors, first, group, N, IS_GATED: gl.constexpr,
    KIND: gl.constexpr, GROUP: gl.constexpr, FORM: gl.constexpr, HAS_FACTORS: gl.constexpr,
):  # fmt: skip
    """The words of lines that have one for all inputs, and what multiplies all their sums."""
    of_codes: gl.constexpr = _code_layout(_num_words(KIND), IS_GATED, is_turned(KIND))
    layout: gl.constexpr = gl.SliceLayout(1, of_codes)
    channel = gl.arange(0, 64, layout=layout)
    line = part_of_lines(first, group * 2 + channel // _LINES, N, IS_GATED) * _LINES
    line += channel % _LINES
    inside = line < (2 * N if IS_GATED else N)
    word = gl.zeros((64,), gl.int32, layout)
    factor = gl.full((64,), 1.0, gl.float32, layout)
    if GROUP == 0:
        word = gl.load(words + line, mask=inside, other=0)
        factor = widen_word(word, FORM)
    if HAS_FACTORS:
        factor *= gl.load(factors + line, mask=inside, other=0.0)
    return word, factor
