"""Gumbel noise g(seed, position, token): a counter hash, then logarithms of our own.

It uses only wrapping integer operations and correctly rounded additions, products and quotients,
one at a time. So every device, and the Triton form too, draws the same bits.
"""

import math

import torch

from outrider.ops.compiled.why_not_compiled import is_compiled

# Elements worked on at once: the scratch stays in the cache of one core, and torch runs operations
# of this size in the calling thread. About 60 parallel regions would each wait for a busy core.
TILE = 32768

_COMPILED = "outrider.ops.compiled.gumbel_rows"


def _int32(*values: int) -> tuple[torch.Tensor, ...]:
    """Constants with these 32 bits, as tensors: torch converts a Python number on every call."""
    signed = ((value + 2**31) % 2**32 - 2**31 for value in values)
    return tuple(torch.tensor(value, dtype=torch.int32, device="cpu") for value in signed)


def _int64(*values: int) -> tuple[torch.Tensor, ...]:
    signed = ((value + 2**63) % 2**64 - 2**63 for value in values)
    return tuple(torch.tensor(value, dtype=torch.int64, device="cpu") for value in signed)


def _float32(*values: float) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor(value, dtype=torch.float32, device="cpu") for value in values)


_GOLDEN, _SHIFT_32, _SHIFT_33, _LOW_31 = _int64(0x9E3779B97F4A7C15, 32, 33, 2**31 - 1)
_KEY_A, _KEY_B = _int64(0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)
_FIRST_A, _FIRST_B = _int32(0x7FEB352D, 0x846CA68B)
_SECOND_A, _SECOND_B = _int32(0x85EBCA6B, 0xC2B2AE35)
_13, _15, _16, _31 = (_int32(shift, 2 ** (32 - shift) - 1) for shift in (13, 15, 16, 31))

_EXPONENT, _ONE_BITS, _HALF_BITS = _int32(0x7F800000, 0x3F800000, 0x3F000000)
_SIGN_EXPONENT, _SQRT_HALF_BITS = _int32(0xFF800000, 0x3F3504F3)
_HALF, _ONE, _TWO, _UNIT = _float32(0.5, 1.0, 2.0, 2.0**-32)
_MINUS_LN2_PER_BIT = _float32(-math.log(2.0) * 2.0**-23)[0]  # a step of 1 in float bits is 2^-23
# -2 atanh(r) = r * p(r^2), Chebyshev fits: relative error 1.9e-7 for |r| <= 1/3,
_W0, _W1, _W2, _W3 = _float32(-1.9999996, -0.6667585, -0.39593187, -0.3420362)
# and 1.2e-7 for |r| <= 0.172, which is (m - 1) / (m + 1) for m between sqrt(1/2) and sqrt(2).
_N0, _N1, _N2 = _float32(-2.0000002, -0.6665227, -0.4129491)


def gumbel(
    seeds: torch.Tensor,  # [n] int64
    positions: torch.Tensor,  # [n] int64
    vocab: int,
    first: int = 0,
) -> torch.Tensor:  # [n, vocab] float32
    """Noise of every token of the vocabulary, or of as many from `first` on."""
    if is_compiled(seeds, _COMPILED):
        from outrider.ops.sampling.gumbel_noise_compiled import gumbel_compiled

        return gumbel_compiled(seeds, positions, vocab, first)
    tokens = torch.arange(first, first + vocab, dtype=torch.int32, device=seeds.device)
    return gumbel_at(seeds, positions, tokens.expand(seeds.shape[0], vocab))


def gumbel_at(
    seeds: torch.Tensor,  # [n] int64
    positions: torch.Tensor,  # [n] int64
    tokens: torch.Tensor,  # [n, k] int32 or int64
) -> torch.Tensor:  # [n, k] float32, always finite: -3.14 < g < 22.9
    """Noise of the given tokens of each row."""
    if seeds.is_cuda:
        from outrider.ops.sampling.gumbel_noise_triton import gumbel_at_triton

        return gumbel_at_triton(seeds, positions, tokens)
    if is_compiled(seeds, _COMPILED):
        from outrider.ops.sampling.gumbel_noise_compiled import gumbel_at_compiled

        return gumbel_at_compiled(seeds, positions, tokens)
    return gumbel_at_reference(seeds, positions, tokens)


def gumbel_at_reference(
    seeds: torch.Tensor,  # [n] int64
    positions: torch.Tensor,  # [n] int64
    tokens: torch.Tensor,  # [n, k] int32 or int64
) -> torch.Tensor:  # [n, k] float32
    """The same in plain torch, tile by tile."""
    low, high = _keys(seeds, positions)
    noise = torch.empty(tokens.shape, dtype=torch.float32, device=tokens.device)
    num_rows, width = tokens.shape
    rows, columns = max(TILE // max(width, 1), 1), min(width, TILE)
    scratch = torch.empty((4, rows, columns), dtype=torch.int32, device=tokens.device)
    for top in range(0, num_rows, rows):
        part = slice(top, top + rows)
        for left in range(0, width, columns):
            tile = noise[part, left : left + columns]
            bits, *spare = scratch[:, : tile.shape[0], : tile.shape[1]].unbind()
            bits.copy_(tokens[part, left : left + columns])
            _hash_(bits, low[part], high[part], spare[0])
            exponential = _exponential_(bits, *spare)
            _negative_log_(exponential, bits, spare[0], out=tile)
    return noise


def _keys(
    seeds: torch.Tensor,  # [n]
    positions: torch.Tensor,  # [n]
) -> tuple[torch.Tensor, torch.Tensor]:  # [n, 1] int32 each
    """Two key words per row, from the finaliser of MurmurHash3, a bijection of 64-bit words.

    The keys of neighbouring seeds are 2^64 / golden ratio apart. So seeds less than 2^31 apart
    never share a key at positions below 2^31, and other seeds share one only by chance.
    """
    # Plus one: the finaliser maps zero to zero, and seed 0 at position 0 would be zero.
    key = (seeds[:, None] + 1) * _GOLDEN + positions[:, None]
    key = (key ^ ((key >> _SHIFT_33) & _LOW_31)) * _KEY_A
    key = (key ^ ((key >> _SHIFT_33) & _LOW_31)) * _KEY_B
    key = key ^ ((key >> _SHIFT_33) & _LOW_31)
    return key.to(torch.int32), (key >> _SHIFT_32).to(torch.int32)


def _hash_(
    bits: torch.Tensor,  # [rows, columns] int32, token ids in, hash out
    low: torch.Tensor,  # [rows, 1] int32
    high: torch.Tensor,  # [rows, 1] int32
    spare: torch.Tensor,  # [rows, columns] int32
) -> None:
    """Permute 32-bit words by a 64-bit key: two mixers of two products, a key word before each.

    One mixer is not enough: if the first words of two keys differ by less than the vocabulary, one
    row would get the other's noise, shifted. The second key word prevents that.
    """
    _xor_shifted_(bits.add_(low), _16, spare)
    _xor_shifted_(bits.mul_(_FIRST_A), _15, spare)
    _xor_shifted_(bits.mul_(_FIRST_B).add_(high), _16, spare)
    _xor_shifted_(bits.mul_(_SECOND_A), _13, spare)
    _xor_shifted_(bits.mul_(_SECOND_B), _16, spare)


def _xor_shifted_(
    bits: torch.Tensor, shift_and_mask: tuple[torch.Tensor, ...], spare: torch.Tensor
) -> None:
    """bits ^= bits >> shift, as if unsigned: torch shifts in the sign, the mask drops it."""
    shift, mask = shift_and_mask
    bits.bitwise_xor_(torch.bitwise_right_shift(bits, shift, out=spare).bitwise_and_(mask))


def _exponential_(
    bits: torch.Tensor,  # int32, uniform; overwritten
    tail: torch.Tensor,  # int32 scratch, all of the same shape
    half: torch.Tensor,  # int32 scratch
    value: torch.Tensor,  # int32 scratch
) -> torch.Tensor:  # float32, lies in `value`
    """Exponential variates, exact to fp32 near zero, where the Gumbel noise is large.

    The sign bit chooses the half of the unit interval and h in (0, 1/2] is the distance from its
    end: E = -log(1 - h), or in the tail -log(h) = k ln2 - log(1 - t) with h = (1 - t) / 2^k.
    """
    torch.bitwise_right_shift(bits, _31[0], out=tail)  # -1 in the tail, else 0
    h = half.view(torch.float32).copy_(bits.bitwise_xor_(tail)).add_(_HALF).mul_(_UNIT)
    torch.bitwise_and(half, _EXPONENT, out=bits)
    bits.sub_(_HALF_BITS).bitwise_and_(tail)  # -k in float bits
    half.sub_(bits)  # h, or in the tail 1 - t
    t = h.sub_(tail.bitwise_and_(_ONE_BITS).view(torch.float32)).abs_()
    scratch, exponential = tail.view(torch.float32), value.view(torch.float32)
    r = t.div_(torch.sub(t, _TWO, out=scratch))  # -t / (2 - t), so that -log(1 - t) = -2 atanh(r)
    square = torch.mul(r, r, out=scratch)
    torch.mul(square, _W3, out=exponential).add_(_W2).mul_(square).add_(_W1).mul_(square).add_(_W0)
    return exponential.mul_(r).add_(scratch.copy_(bits).mul_(_MINUS_LN2_PER_BIT))


def _negative_log_(
    x: torch.Tensor,  # float32, positive and normal; overwritten
    exponent: torch.Tensor,  # int32 scratch, all of the same shape
    scratch: torch.Tensor,  # int32 scratch
    *,
    out: torch.Tensor,  # float32
) -> None:
    """out = -log(x) = -k ln2 - 2 atanh(r), with x = m 2^k, m near 1 and r = (m - 1) / (m + 1)."""
    bits, square = x.view(torch.int32), scratch.view(torch.float32)
    bits.sub_(torch.sub(bits, _SQRT_HALF_BITS, out=exponent).bitwise_and_(_SIGN_EXPONENT))
    r = torch.sub(x, _ONE, out=out).div_(x.add_(_ONE))
    torch.mul(r, r, out=square)
    product = torch.mul(square, _N2, out=x).add_(_N1).mul_(square).add_(_N0).mul_(r)
    torch.add(product, square.copy_(exponent).mul_(_MINUS_LN2_PER_BIT), out=out)
