"""Integers of 2, 4 or 8 bits, out of words."""

import torch

from outrider.ops.linear.quantised_weight import unpack_nibbles

_WORD = 32  # bits
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # which nibble of a word is column j


def bytes_of_words(words: torch.Tensor) -> torch.Tensor:  # [rows, n] int32 -> [rows, 4 * n] uint8
    """The bytes of words, the low ones first."""
    rows, columns = words.shape
    flat = words.contiguous().flatten()  # a single column can have any stride
    return flat.view(torch.uint8).view(rows, 4 * columns)


def unpack_words(words: torch.Tensor, bits: int) -> torch.Tensor:  # [..., n] -> [..., n * 32/bits]
    """The integers in int32 words, those of the low bits first; none is negative."""
    shifts = torch.arange(0, _WORD, bits, dtype=torch.int32)
    integers: torch.Tensor = (words[..., None] >> shifts) & (2**bits - 1)
    return integers.flatten(-2)


def unpack_awq(words: torch.Tensor) -> torch.Tensor:  # [rows, n] -> [rows, 8 * n]
    """The 4-bit integers of AWQ, which stores even columns of a word before odd ones."""
    rows, columns = words.shape
    nibbles = unpack_nibbles(bytes_of_words(words), 2).view(rows, columns, 8)
    return nibbles[..., list(_AWQ_ORDER)].flatten(-2)
