"""The compiled attention of a CPU against the reference."""

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
    out = run(CompiledAttention(page_size=page_size, dtype=model.dtype), given)
    right = run(ReferenceAttention(page_size=page_size, dtype=model.dtype), given)
    torch.testing.assert_close(out, right, atol=1e-5, rtol=0)


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
