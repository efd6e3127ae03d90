"""Plans that are filled once, and plans that every layer fills, for the same steps."""

from dataclasses import replace

import pytest
import torch
from support.attention_cases import Model, latent_model, make_case, ragged, run

from outrider.kv.compiled_attention import CompiledAttention
from outrider.kv.head_shape import HeadShape
from outrider.kv.per_layer_attention import PerLayerAttention
from outrider.kv.reference_attention import ReferenceAttention
from outrider.step.arena import Arena

CASES = {
    "decode": {"lengths": [0, 1, 15, 301]},
    "trees": {"lengths": [4, 0, 31], "nodes": 9},
    "chunks": {"lengths": [5, 40], "nodes": 2, "chunks": {3: (17, 9), 4: (60, 3)}},
}
MODELS = {"heads": Model(), "latents": latent_model(heads=3), "windows": Model(window=5)}
BACKENDS = {"reference": ReferenceAttention, "compiled": CompiledAttention}


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
@pytest.mark.parametrize("sizes", CASES.values(), ids=list(CASES))
def test_both_ways_give_the_same_bits(sizes, model, name):
    backend = BACKENDS[name](page_size=model.page_size, dtype=model.dtype)
    case = make_case(model, seed=3, **sizes)
    assert torch.equal(run(PerLayerAttention(backend), case), run(backend, case))


def test_both_ways_give_the_same_bits_where_rows_draft_different_numbers_of_nodes():
    backend = ReferenceAttention(page_size=3, dtype=torch.float32)
    case = ragged(make_case(Model(), lengths=[4, 0, 31], nodes=5), absent=[3, 0, 4], padding=2)
    assert torch.equal(run(PerLayerAttention(backend), case), run(backend, case))


@pytest.mark.slow
def test_both_ways_give_the_same_bits_with_the_kernels_of_a_gpu():
    pytest.importorskip("triton")
    from outrider.kv.triton_attention import TritonAttention

    model = Model(kv_heads=1, head_dim=16)
    heads = HeadShape(heads=model.heads, head_dim=model.head_dim)
    backend = TritonAttention(page_size=model.page_size, users=[heads])
    case = make_case(model, lengths=[4, 31], nodes=3, chunks={3: (7, 5)})
    assert torch.equal(run(PerLayerAttention(backend), case), run(backend, case))


@pytest.mark.parametrize("is_per_layer", [True, False])
def test_pages_that_move_after_the_fill_are_read_by_the_other_way_alone(is_per_layer):
    """What the two ways differ in: without this, comparing them would prove nothing."""
    case = make_case(Model(), lengths=[7, 9], nodes=3)
    backend = ReferenceAttention(page_size=3, dtype=torch.float32)
    before = run(backend, case)
    tested = PerLayerAttention(backend) if is_per_layer else backend
    arena = Arena(torch.device("cpu"))
    tested.reserve(arena, case.shape)
    plan = tested.bind(arena, case.shape)
    tested.fill(plan, case.scope)
    moved = case.scope.page_table.flip(0)
    after = run(backend, replace(case, scope=replace(case.scope, page_table=moved.clone())))
    case.scope.page_table.copy_(moved)
    found = tested.run(case.query, case.layer, plan, case.model.rule)
    assert not torch.equal(before, after)
    assert torch.equal(found, after if is_per_layer else before)
