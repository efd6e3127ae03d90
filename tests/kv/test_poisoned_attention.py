"""Attention never sums what a query does not see. tests/gpu compiles the kernels."""

import math
from dataclasses import replace

import pytest
import torch
from support.attention_cases import Model, as_chain, chain_ancestors, latent_model, make_case, run
from support.poisoned_attention import (
    assert_blind_to_unused,
    assert_only_descendants_see,
    poisoned_layer,
    slots_of,
)

from outrider.kv.compiled_attention import CompiledAttention
from outrider.kv.head_shape import HeadShape
from outrider.kv.reference_attention import ReferenceAttention
from outrider.kv.triton_attention import TritonAttention

pytest.importorskip("triton")

MODELS = {"heads": Model(kv_heads=1), "latents": latent_model(heads=3)}


def backend_of(name, model):
    if name == "reference":
        return ReferenceAttention(page_size=model.page_size, dtype=model.dtype)
    if name == "compiled":
        return CompiledAttention(page_size=model.page_size, dtype=model.dtype)
    user = HeadShape(
        heads=model.heads,
        head_dim=model.latent or model.head_dim,
        is_latent=model.latent > 0,
    )
    return TritonAttention(page_size=model.page_size, users=[user])


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("nodes", [1, 5])
@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
@pytest.mark.parametrize("backend", ["reference", "compiled", "triton"])
def test_slots_without_a_token_are_never_summed(backend, model, nodes, value):
    case = make_case(model, lengths=[0, 9, 37], nodes=nodes, chunks={4: (7, 5), 5: (0, 2)})
    assert_blind_to_unused(backend_of(backend, model), case, value)


@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
def test_bad_keys_that_no_query_sees_are_zeroed_when_they_are_first_gathered(model):
    case = make_case(model, lengths=[0, 9, 37], nodes=5, chunks={4: (7, 5), 5: (0, 2)})
    layer = poisoned_layer(case, math.nan)
    seen = slots_of(case, 2, torch.tensor([10]))  # node 1 of the row with 9 tokens
    layer.flatten(0, 1)[seen] = math.nan
    before = layer.clone()
    run(backend_of("reference", model), replace(case, layer=layer))
    gathered = case.scope.page_table[1:, : case.shape.pages].unique()
    assert layer[gathered].flatten(0, 1).isnan().any(2).any(1).sum() == 1
    assert layer.flatten(0, 1)[seen].isnan().all()
    own = before.isfinite()
    assert torch.equal(layer[own], before[own])


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("node", [1, 3])
@pytest.mark.parametrize("is_chain", [True, False])
@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
@pytest.mark.parametrize("backend", ["reference", "compiled", "triton"])
def test_a_bad_node_reaches_the_nodes_below_it_alone(backend, model, is_chain, node):
    own = {"ancestors": chain_ancestors(3, 5)} if is_chain else {}
    case = make_case(model, lengths=[0, 9, 37], nodes=5, chunks={4: (7, 5)}, seed=2, **own)
    case = as_chain(case) if is_chain else case
    assert_only_descendants_see(backend_of(backend, model), case, node)
