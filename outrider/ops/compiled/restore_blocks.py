"""Restores GGUF blocks from the numbers that they stand for, as compiled loops.

The extreme numbers of a block give its scale and minimum, because a quantiser maps them to the
first and the last code. A block counts only if it widens to every one of its numbers again.
"""

import numpy as np
from numba import carray

from outrider.ops.compiled.address import pointer_to
from outrider.ops.compiled.block_kind import BLOCK, KINDS
from outrider.ops.compiled.half_bits import float_of_half, half_bits
from outrider.ops.compiled.kernel_cache import compiled

_Q4_1, _Q8_0 = KINDS["Q4_1"].index, KINDS["Q8_0"].index
_HALF_BLOCK = BLOCK // 2
_NONE = np.float32(0.0)


@compiled()
def _extremes(block: np.ndarray, kind: int) -> tuple[np.float32, np.float32]:
    """The scale of a block, and what code 0 stands for in Q4_1, as float16 numbers."""
    least, most = block[0], block[0]
    for value in block:
        least, most = min(least, value), max(most, value)
    if kind == _Q4_1:
        scale, first = (most - least) / np.float32(15.0), least
    elif kind == _Q8_0:
        scale, first = max(most, -least) / np.float32(127.0), _NONE
    else:  # code 0 is -8 scales; the scale may be negative
        largest = most if most > -least else least
        scale, first = largest / np.float32(-8.0), _NONE
    return float_of_half(half_bits(scale)), float_of_half(half_bits(first))


@compiled()
def _find_codes(
    block: np.ndarray, kind: int, scale: np.float32, first: np.float32, codes: np.ndarray
) -> bool:
    """Write the codes, signed as in the formula of the kind; whether they give every number."""
    inverse = np.float32(1.0) / scale if scale != _NONE else _NONE
    least, most = (0, 15) if kind == _Q4_1 else (-8, 7)
    if kind == _Q8_0:
        least, most = -128, 127
    num_exact = 0
    for place in range(BLOCK):
        step = np.float32(np.rint((block[place] - first) * inverse))
        is_code = least <= step <= most
        if is_code and step * scale + first == block[place]:
            num_exact += 1
        codes[place] = np.int32(step) if is_code else 0
    return num_exact == BLOCK


@compiled()
def _write(
    to: np.ndarray, kind: int, scale: np.float32, first: np.float32, codes: np.ndarray
) -> None:
    """Write one block as a GGUF file has it."""
    bits, start = half_bits(scale), 2
    to[0], to[1] = bits & 0xFF, bits >> 8
    if kind == _Q4_1:
        bits, start = half_bits(first), 4
        to[2], to[3] = bits & 0xFF, bits >> 8
    if kind == _Q8_0:
        for place in range(BLOCK):
            to[start + place] = codes[place] & 0xFF
        return
    offset = 0 if kind == _Q4_1 else 8
    for place in range(_HALF_BLOCK):
        low, high = codes[place] + offset, codes[place + _HALF_BLOCK] + offset
        to[start + place] = low | (high << 4)


# The signature makes numba compile at import, where a failure is caught (`why_not_compiled`).
@compiled("(int64, int64, int64, int64, int64, int64)")
def restore_blocks(
    weight_at: int,  # address of float32 [outputs, inputs]
    outputs: int,
    inputs: int,
    kind: int,  # the index of a `BlockKind`
    rows_at: int,  # address of uint8 [outputs, row_bytes], written
    row_bytes: int,
) -> bool:
    """Whether every block of the weight has this kind. Stops at the first that does not."""
    weight = carray(pointer_to(weight_at), (outputs, inputs), np.float32)
    rows = carray(pointer_to(rows_at), (outputs, row_bytes), np.uint8)
    num_blocks = inputs // BLOCK
    size = row_bytes // num_blocks
    codes = np.empty(BLOCK, np.int32)
    for row in range(len(weight)):
        for place in range(num_blocks):
            block = weight[row, place * BLOCK : (place + 1) * BLOCK]
            to = rows[row, place * size : (place + 1) * size]
            scale, first = _extremes(block, kind)
            if not _find_codes(block, kind, scale, first, codes):
                return False
            _write(to, kind, scale, first, codes)
    return True
