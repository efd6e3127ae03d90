"""Attention over keys and values of one byte: that over the numbers which the codes stand for."""

from dataclasses import replace

import pytest
import torch
from support.attention_cases import Model, chain_ancestors, make_case, run

from outrider.kv.compiled_attention import CompiledAttention
from outrider.kv.head_shape import HeadShape
from outrider.kv.reference_attention import ReferenceAttention

CODES = [torch.float8_e4m3fn, torch.float8_e5m2]
SMALL = {"lengths": [37], "nodes": 2, "chunks": {2: (3, 5)}}
CASE = {"lengths": [5, 40, 0], "nodes": 5, "chunks": {4: (17, 9), 5: (60, 3)}}


def reference(model):
    return ReferenceAttention(page_size=model.page_size, dtype=model.dtype)


def compiled(model):
    return CompiledAttention(page_size=model.page_size, dtype=model.dtype)


def triton(model):
    pytest.importorskip("triton")
    from outrider.kv.triton_attention import TritonAttention

    users = [HeadShape(heads=model.heads, head_dim=model.head_dim)]
    return TritonAttention(page_size=model.page_size, users=users)


BACKENDS = {"reference": reference, "compiled": compiled, "triton": triton}


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("name", BACKENDS)
def test_codes_are_read_as_the_numbers_they_stand_for(name, dtype):
    is_interpreted = name == "triton"
    model = Model(kv_heads=1 if is_interpreted else 2, group=2, head_dim=16, page_size=5)
    given = make_case(model, seed=5, **(SMALL if is_interpreted else CASE))
    codes = given.layer.to(dtype)
    backend = BACKENDS[name](model)
    found = run(backend, replace(given, layer=codes))
    right = run(backend, replace(given, layer=codes.float()))
    torch.testing.assert_close(found, right, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["reference", "compiled", pytest.param("triton", marks=pytest.mark.slow)]
)
def test_a_needle_among_thousands_of_keys_is_found(name):
    """One key of 8209 has the query's direction; all others together have half of the weight."""
    num_keys, place = 8209, 3001
    model = Model(kv_heads=1, group=1, head_dim=16, page_size=256)
    case = make_case(model, lengths=[num_keys - 1], ancestors=chain_ancestors(1, 1), seed=3)
    pages, size = case.scope.page_table[1], model.page_size
    layer = torch.zeros_like(case.layer)
    layer[:, :, 1] = 0.25  # values of the hay
    query = torch.zeros_like(case.query)
    query[..., 0] = 4.0
    needle = layer[pages[place // size], place % size]
    needle[0, 0] = 7.5  # 0.3 * 4 * 7.5 = 9: its weight is exp(9) = 8103 times that of another
    needle[1] = -1.0
    given = replace(case, query=query, layer=layer.to(torch.float8_e4m3fn))
    weight = 8103.08 / (8103.08 + num_keys - 1)
    right = torch.full_like(query, weight * -1.0 + (1 - weight) * 0.25)
    torch.testing.assert_close(run(BACKENDS[name](model), given), right, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["reference", "compiled"])
def test_keys_that_are_not_finite_reach_only_queries_that_see_them(name):
    model = Model(kv_heads=1, group=2, head_dim=16, page_size=4)
    case = make_case(model, lengths=[6, 3], ancestors=chain_ancestors(2, 1), seed=7)
    clean = case.layer.to(torch.float8_e4m3fn)
    own, other = case.scope.page_table[1], case.scope.page_table[2]
    bad = clean.float()
    bad[own[1], 3, 0] = torch.nan  # position 7, after the last token of the first row
    bad[other[0], 1, 0] = torch.nan  # a key that the second row sees
    found = run(BACKENDS[name](model), replace(case, layer=bad.to(torch.float8_e4m3fn)))
    right = run(BACKENDS[name](model), replace(case, layer=clean))
    torch.testing.assert_close(found[0], right[0], rtol=0, atol=1e-6)
    assert found[1].isnan().all()
