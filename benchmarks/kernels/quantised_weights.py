"""Quantised weights of random codes, for the scripts and tests beside it."""

import torch

from outrider.models.quantised.grouped_integers import grouped_integers, quantised_weight
from outrider.ops.linear.quantised_weight import CodeKind, QuantisedWeight

_CPU = torch.device("cpu")
_GROUP, _SMALL_GROUP = 128, 32  # of int4, and of powers of two
_CODES = 126  # of e4m3: finite ones without their sign
_POWERS = (110, 118)  # e8m0: about 1e-5 to 2e-3


def random_codes(
    kind: CodeKind, size: int, depth: int, *, seed: int = 0, device: torch.device = _CPU
) -> QuantisedWeight:
    """A weight [size, depth], as the most usual folders of a kind have it.

    fp8: float32 scales per 128 inputs. int4: float16 scales and zero points per 128. e2m1: MXFP4.
    int8: a scale per output.
    """
    return _draw(kind, size, depth, torch.Generator(device).manual_seed(seed)).to(device)


def _draw(kind: CodeKind, size: int, depth: int, draw: torch.Generator) -> QuantisedWeight:
    group = min(_GROUP, depth)
    if kind == "e4m3":
        codes = _integers(draw, (0, _CODES), size, depth)
        codes += _integers(draw, (0, 2), size, depth) * 128
        scales = _uniform(draw, -(-depth // group), size) * 4e-4
        return quantised_weight(kind, codes.view(torch.float8_e4m3fn), scales, group=group)
    if kind == "int8":
        codes = _integers(draw, (0, 256), size, depth).view(torch.int8)
        return quantised_weight(kind, codes, _uniform(draw, 1, size) * 1e-3, group=depth)
    codes = _integers(draw, (0, 256), size, depth // 2)
    if kind == "e2m1":
        small = min(_SMALL_GROUP, depth)
        scales = _integers(draw, _POWERS, depth // small, size)
        return quantised_weight(kind, codes, scales, group=small)
    scales = (_uniform(draw, depth // group, size) * 1e-2).half()
    zeros = _integers(draw, (0, 16), depth // group, size).int()
    return grouped_integers(codes, depth, scales, zeros, bits=4, order=None)


def _integers(draw: torch.Generator, limits: tuple[int, int], *shape: int) -> torch.Tensor:
    """Bytes from the first limit to below the second."""
    return torch.randint(*limits, shape, generator=draw, dtype=torch.uint8, device=draw.device)


def _uniform(draw: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=draw, device=draw.device)
