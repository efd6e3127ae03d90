"""Codes of 8 bits in kernels, interpreted, against the conversions of torch."""

import pytest
import torch

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from outrider.ops.attention.kv_codes import store_codes_reference  # noqa: E402
from outrider.ops.attention.kv_codes_triton import (  # noqa: E402
    pool_argument,
    store_codes_triton,
    widened,
)

CODES = [torch.float8_e4m3fn, torch.float8_e5m2]
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


@triton.jit
def _widen_kernel(codes, out, SIZE: tl.constexpr):
    place = tl.arange(0, SIZE)
    tl.store(out + place, widened(tl.load(codes + place), tl.float32))


def numbers(dtype):
    """Every code, what lies between two of them, and what is too large, in float32."""
    codes = torch.arange(256).to(torch.uint8).view(dtype).float()
    finite = codes[codes.isfinite()].sort().values
    middle = (finite[1:] + finite[:-1]) / 2
    near = torch.cat([middle, middle.nextafter(finite[1:]), middle.nextafter(finite[:-1])])
    largest = LARGEST[dtype]
    odd = torch.tensor([0.0, -0.0, largest * 1.01, -largest * 3, 1e-30, -1e-42, torch.nan])
    random = torch.randn(500, generator=torch.manual_seed(1)).exp2() - 1
    return torch.cat([finite, near, odd, random, -random * 2.0**-8])


@pytest.mark.parametrize("dtype", CODES)
def test_every_code_is_widened_to_its_number(dtype):
    codes = torch.arange(256).to(torch.uint8).view(dtype)
    out = torch.empty(256)
    _widen_kernel[(1,)](pool_argument(codes), out, SIZE=256)
    right = codes.float()
    is_number = right.isfinite()  # infinities are never stored
    assert torch.equal(out[is_number], right[is_number])
    assert out[right.isnan()].isnan().all()


@pytest.mark.parametrize("dtype", CODES)
def test_numbers_are_rounded_to_the_nearest_code_and_saturate(dtype):
    x = numbers(dtype)
    x = x[: len(x) // 4 * 4].view(2, 2, -1)  # two tokens
    slots = torch.tensor([3, 1])
    pools = [torch.zeros(5, 1, *x.shape[1:]).to(dtype) for _ in range(2)]
    store_codes_triton(pools[0], slots, x)
    store_codes_reference(pools[1], slots, x)
    left, right = (pool.float() for pool in pools)
    torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)
    found, limit = left[slots, 0], LARGEST[dtype]
    clamped = x.clamp(-limit, limit).to(dtype).float()  # as torch rounds
    torch.testing.assert_close(found, clamped, rtol=0, atol=0, equal_nan=True)
    assert found.isnan().any()
    assert found.abs().nan_to_num().max() == limit
    assert not left[[0, 2, 4]].any()
