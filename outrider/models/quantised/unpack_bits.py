"""Small numbers out of words and bytes: integers of 2, 4 or 8 bits, e2m1 and e8m0."""

import torch

_WORD = 32  # bits
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # which nibble of a word is column j
# e2m1: one sign bit, two of exponent, one of mantissa.
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
_E8M0_BIAS, _E8M0_NAN = 127, 255


def unpack_words(words: torch.Tensor, bits: int) -> torch.Tensor:  # [..., n] -> [..., n * 32/bits]
    """The integers in int32 words, those of the low bits first; none is negative."""
    shifts = torch.arange(0, _WORD, bits, dtype=torch.int32)
    integers: torch.Tensor = (words[..., None] >> shifts) & (2**bits - 1)
    return integers.flatten(-2)


def unpack_awq(words: torch.Tensor) -> torch.Tensor:  # [rows, n] -> [rows, 8 * n]
    """The 4-bit integers of AWQ, which stores even columns of a word before odd ones."""
    nibbles = unpack_words(words, 4).view(*words.shape, 8)
    return nibbles[..., list(_AWQ_ORDER)].flatten(-2)


def unpack_e2m1(packed: torch.Tensor) -> torch.Tensor:  # [..., n] bytes -> [..., 2 * n] float32
    """Two numbers per byte, that of the low bits first."""
    codes = packed.view(torch.uint8).int()
    pairs = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2)
    return torch.tensor(_E2M1)[pairs]


def widen_e8m0(stored: torch.Tensor) -> torch.Tensor:  # bytes or float8_e8m0 -> float32
    """Powers of two; the largest code is NaN."""
    codes = stored.view(torch.uint8).int()
    powers = torch.ldexp(torch.ones(codes.shape), codes - _E8M0_BIAS)
    return torch.where(codes == _E8M0_NAN, torch.nan, powers)
