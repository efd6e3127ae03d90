"""Quantised weights of random codes, for the scripts and tests beside it."""

import torch

from outrider.models.quantised.grouped_integers import grouped_integers, quantised_weight
from outrider.ops.linear.quantised_weight import CodeKind, QuantisedWeight

_GROUP, _SMALL_GROUP = 128, 32  # of int4, and of powers of two
_CODES = 126  # of e4m3: finite ones without their sign
_POWERS = (110, 118)  # e8m0: about 1e-5 to 2e-3


def random_codes(kind: CodeKind, size: int, depth: int, *, seed: int = 0) -> QuantisedWeight:
    """A weight [size, depth] on the CPU, as the most usual folders of a kind have it.

    fp8: float32 scales per 128 inputs. int4: float16 scales and zero points per 128. e2m1: MXFP4.
    int8: a scale per output.
    """
    draw = torch.Generator().manual_seed(seed)
    if kind == "e4m3":
        codes = torch.randint(0, _CODES, (size, depth), generator=draw, dtype=torch.uint8)
        codes += torch.randint(0, 2, (size, depth), generator=draw, dtype=torch.uint8) * 128
        scales = torch.rand(-(-depth // _GROUP), size, generator=draw) * 4e-4
        return quantised_weight(kind, codes.view(torch.float8_e4m3fn), scales, group=_GROUP)
    if kind == "int8":
        codes = torch.randint(-128, 128, (size, depth), generator=draw, dtype=torch.int8)
        scales = torch.rand(1, size, generator=draw) * 1e-3
        return quantised_weight(kind, codes, scales, group=depth)
    if kind == "e2m1":
        codes = torch.randint(0, 256, (size, depth // 2), generator=draw, dtype=torch.uint8)
        shape = depth // _SMALL_GROUP, size
        scales = torch.randint(*_POWERS, shape, generator=draw, dtype=torch.uint8)
        return quantised_weight(kind, codes, scales, group=_SMALL_GROUP)
    groups = depth // _GROUP
    scales = (torch.rand(groups, size, generator=draw) * 1e-2).half()
    zeros = torch.randint(0, 16, (groups, size), generator=draw, dtype=torch.int32)
    codes = torch.randint(0, 256, (size, depth // 2), generator=draw, dtype=torch.uint8)
    return grouped_integers(codes, depth, scales, zeros, bits=4, order=None)
