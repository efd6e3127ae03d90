"""Gumbel noise with the bits of `gumbel_noise.py`: a compiled function for every thread of a team.

No operation is fused or reordered: both would change bits. The array of integers that it gets:

    0 rows, 1 tokens of a row, 2 seeds, 3 positions, 4 noise
    5 token ids or 0, 6 bytes of an id, 7 ids from one row to the next, 8 first id if there are none
"""

import numpy as np
from numba import carray

from outrider.ops.compiled.address import pointer_to
from outrider.ops.compiled.exponential import bits_of, float_of
from outrider.ops.compiled.kernel_cache import callback, compiled
from outrider.ops.compiled.openmp import num_threads, thread_index

_PART = 1024  # tokens that a thread draws at once
_GOLDEN, _33, _32 = np.uint64(0x9E3779B97F4A7C15), np.uint64(33), np.uint64(32)
_KEY_A, _KEY_B, _NEXT = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53), np.uint64(1)
_FIRST_A, _FIRST_B = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)
_SECOND_A, _SECOND_B = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_13, _15, _16, _31 = np.uint32(13), np.uint32(15), np.uint32(16), np.int32(31)
_EXPONENT, _ONE_BITS, _HALF_BITS = np.int32(0x7F800000), np.int32(0x3F800000), np.int32(0x3F000000)
_SIGN_EXPONENT, _SQRT_HALF_BITS = np.int32(-0x800000), np.int32(0x3F3504F3)
_HALF, _ONE, _TWO, _UNIT = np.float32(0.5), np.float32(1.0), np.float32(2.0), np.float32(2.0**-32)
_MINUS_LN2_PER_BIT = np.float32(-0.6931471805599453 * 2.0**-23)
_W0, _W1 = np.float32(-1.9999996), np.float32(-0.6667585)
_W2, _W3 = np.float32(-0.39593187), np.float32(-0.3420362)
_N0, _N1, _N2 = np.float32(-2.0000002), np.float32(-0.6665227), np.float32(-0.4129491)


@compiled()
def key_of(seed: int, position: int) -> np.uint64:
    """The key of all noise of a choice."""
    key = (np.uint64(seed) + _NEXT) * _GOLDEN + np.uint64(position)
    key = (key ^ (key >> _33)) * _KEY_A
    key = (key ^ (key >> _33)) * _KEY_B
    mixed: np.uint64 = key ^ (key >> _33)
    return mixed


@compiled()
def _halves(key: np.uint64) -> tuple[np.uint32, np.uint32]:
    return np.uint32(key & np.uint64(0xFFFFFFFF)), np.uint32(key >> _32)


@compiled()
def _hash(token: np.uint32, low: np.uint32, high: np.uint32) -> np.int32:
    """Products and sums are cut to 32 bits one by one: numba widens them."""
    bits = np.uint32(token + low)
    bits = np.uint32((bits ^ (bits >> _16)) * _FIRST_A)
    bits = np.uint32(np.uint32((bits ^ (bits >> _15)) * _FIRST_B) + high)
    bits = np.uint32((bits ^ (bits >> _16)) * _SECOND_A)
    bits = np.uint32((bits ^ (bits >> _13)) * _SECOND_B)
    return np.int32(bits ^ (bits >> _16))


@compiled()
def _exponential(bits: np.int32) -> np.float32:
    tail = np.int32(bits >> _31)
    half = bits_of((np.float32(np.int32(bits ^ tail)) + _HALF) * _UNIT)
    exponent = np.int32(np.int32((half & _EXPONENT) - _HALF_BITS) & tail)
    t = abs(float_of(np.int32(half - exponent)) - float_of(np.int32(tail & _ONE_BITS)))
    r = t / (t - _TWO)
    square = r * r
    product = ((_W3 * square + _W2) * square + _W1) * square + _W0
    drawn: np.float32 = product * r + np.float32(exponent) * _MINUS_LN2_PER_BIT
    return drawn


@compiled()
def _negative_log(x: np.float32) -> np.float32:
    bits = bits_of(x)
    exponent = np.int32(np.int32(bits - _SQRT_HALF_BITS) & _SIGN_EXPONENT)
    m = float_of(np.int32(bits - exponent))
    r = (m - _ONE) / (m + _ONE)
    square = r * r
    product = ((_N2 * square + _N1) * square + _N0) * r
    result: np.float32 = product + np.float32(exponent) * _MINUS_LN2_PER_BIT
    return result


@compiled()
def draw_at(ids: np.ndarray, key: np.uint64, out: np.ndarray) -> None:  # [n] both
    """The noise of these tokens."""
    low, high = _halves(key)
    for place in range(len(out)):
        bits = _hash(np.uint32(ids[place]), low, high)
        out[place] = _negative_log(_exponential(bits))


@compiled()
def _draw_from(first: int, key: np.uint64, out: np.ndarray) -> None:  # [n]
    """The noise of neighbouring tokens."""
    low, high = _halves(key)
    for place in range(len(out)):
        bits = _hash(np.uint32(first + place), low, high)
        out[place] = _negative_log(_exponential(bits))


@callback("void(voidptr)")
def draw_gumbel(pointer: int) -> None:
    given = carray(pointer, (9,), np.int64)
    rows, width, ids_at, id_bytes, stride = given[0], given[1], given[5], given[6], given[7]
    seeds = carray(pointer_to(given[2]), (rows,), np.int64)
    positions = carray(pointer_to(given[3]), (rows,), np.int64)
    noise = carray(pointer_to(given[4]), (rows, width), np.float32)
    parts = (width + _PART - 1) // _PART
    for item in range(thread_index(), rows * parts, num_threads()):
        row, start = item // parts, item % parts * _PART
        size = min(_PART, width - start)
        key, out = key_of(seeds[row], positions[row]), noise[row, start : start + size]
        at = ids_at + (row * stride + start) * id_bytes
        if id_bytes == 8:
            draw_at(carray(pointer_to(at), (size,), np.int64), key, out)
        elif id_bytes == 4:
            draw_at(carray(pointer_to(at), (size,), np.int32), key, out)
        else:
            _draw_from(given[8] + start, key, out)
