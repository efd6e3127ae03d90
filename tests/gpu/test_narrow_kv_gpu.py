"""Keys and values of one byte on a GPU: compiled kernels against plain torch on the same codes."""

from dataclasses import replace

import pytest
import torch
from support.attention_cases import Model, make_case, run

from outrider.kv.head_shape import HeadShape
from outrider.kv.reference_attention import ReferenceAttention
from outrider.kv.triton_attention import TritonAttention
from outrider.ops.attention.kv_codes import store_codes, store_codes_reference

CODES = [torch.float8_e4m3fn, torch.float8_e5m2]
LLAMA = Model(kv_heads=8, group=4, head_dim=128, page_size=16, dtype=torch.bfloat16, device="cuda")


@pytest.mark.parametrize("dtype", CODES)
def test_codes_are_stored_as_torch_rounds_them(dtype):
    x = torch.randn(33, 16, 128, device="cuda", dtype=torch.bfloat16).exp2() * 3 - 4
    x[3, 5, 7], x[4, 0, 0] = torch.nan, 1e6
    slots = torch.randperm(64, device="cuda")[:33]
    pools = [torch.zeros(64, 1, 16, 128, device="cuda").to(dtype) for _ in range(2)]
    store_codes(pools[0], slots, x)
    store_codes_reference(pools[1], slots, x)
    left, right = (pool.float() for pool in pools)
    torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("nodes", [1, 6])
def test_codes_are_read_as_the_numbers_they_stand_for(dtype, nodes):
    case = make_case(LLAMA, lengths=[5, 700, 0], nodes=nodes, chunks={4: (17, 90)}, seed=nodes)
    users = [HeadShape(heads=LLAMA.heads, head_dim=LLAMA.head_dim)]
    backend = TritonAttention(page_size=LLAMA.page_size, users=users)
    codes = case.layer.to(dtype)
    found = run(backend, replace(case, layer=codes))
    wide = run(backend, replace(case, layer=codes.to(LLAMA.dtype)))
    torch.testing.assert_close(found, wide, rtol=0, atol=0)  # the same products, the same sums
    exact = replace(case, query=case.query.float(), layer=codes.float())
    right = run(ReferenceAttention(page_size=LLAMA.page_size, dtype=torch.float32), exact)
    torch.testing.assert_close(found.float(), right, rtol=2e-2, atol=2e-2)
