"""The compiled attention of a CPU against the reference."""

from dataclasses import replace

import pytest
import torch
from support.attention_cases import Model, make_case, run

from outrider.kv.compiled_attention import CompiledAttention
from outrider.kv.reference_attention import ReferenceAttention
from outrider.ops.attention.attention_rule import AttentionRule
from outrider.ops.compiled.exponential import exp_of
from outrider.step.arena import Arena

CASES = {
    "decode": {"lengths": [0, 1, 15, 16, 301]},
    "trees": {"lengths": [4, 0, 31], "nodes": 9},
    "chunks": {"lengths": [5, 40], "nodes": 2, "chunks": {3: (17, 9), 4: (60, 3)}},
}


@pytest.mark.parametrize(
    ("page_size", "group", "head_dim"), [(5, 3, 24), (16, 5, 64), (16, 3, 128), (4, 1, 16)]
)
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_compiled_attention_is_that_of_the_reference(case, page_size, group, head_dim):
    model = Model(kv_heads=2, group=group, head_dim=head_dim, page_size=page_size)
    given = make_case(model, seed=5, **case)
    right = run(ReferenceAttention(page_size=page_size, dtype=model.dtype), given)
    for has_latents in (False, True):
        backend = CompiledAttention(page_size=page_size, dtype=model.dtype, has_latents=has_latents)
        torch.testing.assert_close(run(backend, given), right, atol=1e-5, rtol=0)


def filled(kind, case, page_size, scope):
    """The plan of a step over memory that held something else."""
    backend, arena = kind(page_size=page_size, dtype=torch.float32), Arena(torch.device("cpu"))
    backend.reserve(arena, case.shape)
    plan = backend.bind(arena, case.shape)
    plan.decode.slots.fill_(99)
    plan.decode.mask.fill_(99.0)
    backend.fill(plan, scope)
    return plan


@pytest.mark.parametrize("page_size", [5, 16])
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_a_compiled_plan_has_the_keys_and_the_mask_of_the_reference(case, page_size):
    given = make_case(Model(page_size=page_size), seed=5, **case)
    rows, nodes = given.scope.ancestors.shape
    shared = given.scope.ancestors[:1].expand(rows, nodes)  # rows that share memory
    for scope in (given.scope, replace(given.scope, ancestors=shared)):
        found = filled(CompiledAttention, given, page_size, scope).decode
        expected = filled(ReferenceAttention, given, page_size, scope).decode
        assert torch.equal(found.slots, expected.slots)
        assert torch.equal(found.mask, expected.mask)


def test_a_plan_with_a_row_outside_of_the_page_table_fails():
    given = make_case(Model(page_size=4), lengths=[3])
    rows = torch.full_like(given.scope.decode.rows, given.scope.page_table.shape[0])
    scope = replace(given.scope, decode=replace(given.scope.decode, rows=rows))
    with pytest.raises(IndexError, match="outside of the page table"):
        filled(CompiledAttention, given, 4, scope)


def test_the_exponential_is_that_of_torch():
    x = torch.cat([torch.linspace(-86.0, 86.0, 4001), torch.tensor([0.0, -0.0, 1e-30])])
    found = torch.tensor([float(exp_of(value)) for value in x.numpy()])
    torch.testing.assert_close(found, x.exp(), rtol=3e-7, atol=0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_the_exponential_of_what_is_not_finite_is_nan(value):
    assert torch.tensor(float(exp_of(torch.tensor(value).numpy()[()]))).isnan()


def test_a_query_token_without_a_place_reads_nothing():
    case = make_case(Model(page_size=4), lengths=[], chunks={1: (3, 4)})
    backend, arena = CompiledAttention(page_size=4, dtype=torch.float32), Arena(torch.device("cpu"))
    backend.reserve(arena, case.shape)
    plan = backend.bind(arena, case.shape)
    backend.fill(plan, case.scope)
    plan.places[1], plan.places[2] = -5, 1 << 50
    out = backend.run(case.query, case.layer, plan, AttentionRule(scale=1.0))
    assert out[[1, 2]].isnan().all()
    assert out[[0, 3]].isfinite().all()
