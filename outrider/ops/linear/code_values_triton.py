"""The codes of a block of a quantised weight as exact numbers, in the order of its inputs.

`kernel_weight.py` says how codes lie. Reordering them moves nothing between threads: the compiler
gives every register the place that tensor cores want (a test reads the assembly). On a Hopper two
or four codes are widened at once by assembly; elsewhere the same numbers are computed one by one.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from outrider.ops import gpu_facts

_ASSEMBLY = (9, 0)  # the first GPUs that subtract pairs of bfloat16
_E2M1_TO_FLOAT = tl.constexpr(2.0**126)  # moves the exponent of shifted e2m1 bits to its place

# 0x4300 | n is the bfloat16 128 + n, for n < 128.
_INT4 = tl.constexpr("""{
.reg .b32 a, b, c, d, mask, middle, less;
mov.b32 mask, 0x000f000f;
mov.b32 middle, 0x43004300;
mov.b32 less, {$9, $9};
shr.u32 b, $8, 4;
shr.u32 c, $8, 8;
shr.u32 d, $8, 12;
lop3.b32 a, $8, mask, middle, 0xea;
lop3.b32 b, b, mask, middle, 0xea;
lop3.b32 c, c, mask, middle, 0xea;
lop3.b32 d, d, mask, middle, 0xea;
sub.rn.bf16x2 a, a, less;
sub.rn.bf16x2 b, b, less;
sub.rn.bf16x2 c, c, less;
sub.rn.bf16x2 d, d, less;
mov.b32 {$0, $1}, a;
mov.b32 {$2, $3}, b;
mov.b32 {$4, $5}, c;
mov.b32 {$6, $7}, d;
}""")

# Sign, exponent and mantissa go to their places in a bfloat16, which is then 2**-126 too small. The
# factor that follows is 2**126 and the scale of the group.
_E2M1 = tl.constexpr("""{
.reg .b32 a, b, c, d, high, mask, sign, power;
mov.b32 mask, 0x01c001c0;
mov.b32 sign, 0x80008000;
mov.b32 power, {$9, $9};
shl.b32 high, $8, 12;
and.b32 high, high, sign;
shl.b32 a, $8, 6;
lop3.b32 a, a, mask, high, 0xea;
shl.b32 high, $8, 8;
and.b32 high, high, sign;
shl.b32 b, $8, 2;
lop3.b32 b, b, mask, high, 0xea;
shl.b32 high, $8, 4;
and.b32 high, high, sign;
shr.u32 c, $8, 2;
lop3.b32 c, c, mask, high, 0xea;
and.b32 high, $8, sign;
shr.u32 d, $8, 6;
lop3.b32 d, d, mask, high, 0xea;
mul.rn.bf16x2 a, a, power;
mul.rn.bf16x2 b, b, power;
mul.rn.bf16x2 c, c, power;
mul.rn.bf16x2 d, d, power;
mov.b32 {$0, $1}, a;
mov.b32 {$2, $3}, b;
mov.b32 {$4, $5}, c;
mov.b32 {$6, $7}, d;
}""")

# A byte is its low seven bits less 128 times its sign: (128 + low) - (128 or 256).
_INT8 = tl.constexpr("""{
.reg .b32 a, b, low, high, middle;
mov.b32 middle, 0x43004300;
prmt.b32 a, $4, 0, 0x4140;
prmt.b32 b, $4, 0, 0x4342;
lop3.b32 low, a, 0x007f007f, middle, 0xea;
lop3.b32 high, a, 0x00800080, middle, 0xea;
sub.rn.bf16x2 a, low, high;
lop3.b32 low, b, 0x007f007f, middle, 0xea;
lop3.b32 high, b, 0x00800080, middle, 0xea;
sub.rn.bf16x2 b, low, high;
mov.b32 {$0, $1}, a;
mov.b32 {$2, $3}, b;
}""")
_EIGHT = tl.constexpr("=h,=h,=h,=h,=h,=h,=h,=h,r,h")
_FOUR = tl.constexpr("=h,=h,=h,=h,r")


@triton.jit
def code_values(
    stored,  # [COLUMNS, 128] e4m3 or wide codes, or words: [COLUMNS, 32] of int8, [COLUMNS, 16]
    beside,  # int32, [COLUMNS, 1] zero points of int4 codes, [COLUMNS, 1 or 16] e8m0 of e2m1 codes
    TYPE: tl.constexpr,
    KIND: tl.constexpr,
    COMPILED: tl.constexpr,  # for a Hopper or newer
):  # [COLUMNS, 128] of the type
    """The codes of a block; those of int4 less their zero points, those of e2m1 times powers."""
    if KIND == "wide":
        values = stored
    elif KIND == "e4m3":
        values = _in_order_of_bytes(stored.to(tl.float32).to(TYPE))
    elif KIND == "int8":
        values = _int8_values(stored, TYPE, COMPILED)
    else:
        values = _nibble_values(stored, beside, TYPE, KIND, COMPILED)
    return values


@triton.jit
def _in_order_of_bytes(values):  # [COLUMNS, 128]
    COLUMNS: tl.constexpr = values.shape[0]
    parts = tl.reshape(values, (COLUMNS, 2, 4, 4, 2, 2))
    return tl.reshape(tl.permute(parts, (0, 1, 3, 4, 2, 5)), (COLUMNS, 128))


@triton.jit
def _int8_values(words, TYPE: tl.constexpr, COMPILED: tl.constexpr):
    COLUMNS: tl.constexpr = words.shape[0]
    if COMPILED:
        a, b, c, d = tl.inline_asm_elementwise(
            _INT8, _FOUR, [words], (tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True, pack=1,
        )  # fmt: skip
    else:
        a, b = _byte_of(words, 0), _byte_of(words, 1)
        c, d = _byte_of(words, 2), _byte_of(words, 3)
    both = tl.join(tl.join(a, b), tl.join(c, d))
    parts = tl.reshape(both, (COLUMNS, 2, 4, 4, 2, 2))  # a, d, b, e, c of `kernel_weight.py`
    return tl.reshape(tl.permute(parts, (0, 1, 3, 5, 2, 4)), (COLUMNS, 128)).to(TYPE)


@triton.jit
def _byte_of(words, PLACE: tl.constexpr):
    return ((words << (24 - 8 * PLACE)) >> 24).to(tl.float32)


@triton.jit
def _nibble_values(
    words, beside, TYPE: tl.constexpr, KIND: tl.constexpr, COMPILED: tl.constexpr
):  # [COLUMNS, 16] -> [COLUMNS, 128]
    COLUMNS: tl.constexpr = words.shape[0]
    if COMPILED:
        bits = beside + 0x4300 if KIND == "int4" else (beside + 126) << 7
        number = bits.to(tl.int16).to(tl.bfloat16, bitcast=True)
        a, b, c, d, e, f, g, h = tl.inline_asm_elementwise(
            _INT4 if KIND == "int4" else _E2M1, _EIGHT, [words, number],
            (tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16,
             tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True, pack=1,
        )  # fmt: skip
    else:
        a, b = _nibble_of(words, beside, 0, KIND), _nibble_of(words, beside, 4, KIND)
        c, d = _nibble_of(words, beside, 1, KIND), _nibble_of(words, beside, 5, KIND)
        e, f = _nibble_of(words, beside, 2, KIND), _nibble_of(words, beside, 6, KIND)
        g, h = _nibble_of(words, beside, 3, KIND), _nibble_of(words, beside, 7, KIND)
    low = tl.join(tl.join(a, b), tl.join(c, d))  # d, a, e, c of `kernel_weight.py`
    high = tl.join(tl.join(e, f), tl.join(g, h))
    parts = tl.reshape(tl.join(low, high), (COLUMNS, 4, 4, 2, 2, 2))  # d, a, e, c, b
    return tl.reshape(tl.permute(parts, (0, 2, 5, 4, 1, 3)), (COLUMNS, 128)).to(TYPE)


@triton.jit
def _nibble_of(words, beside, PLACE: tl.constexpr, KIND: tl.constexpr):
    code = (words >> (4 * PLACE)) & 15
    if KIND == "int4":
        wide = (code - beside).to(tl.float32)
    else:
        bits = ((code & 8) << 28) | ((code & 7) << 22)
        power = (beside << 23).to(tl.float32, bitcast=True)
        wide = bits.to(tl.float32, bitcast=True) * _E2M1_TO_FLOAT * power
    return wide


def has_assembly(x: torch.Tensor) -> bool:
    """Whether kernels for this tensor may widen codes by assembly, which makes bfloat16."""
    return gpu_facts.capability(x) >= _ASSEMBLY
