"""Plans that are filled once, and plans that every layer fills, for the same steps."""

import random
from dataclasses import replace

import pytest
import torch
from support.attention_cases import Model, latent_model, make_case, ragged, run
from support.steps import NO_FLAGS, batch_of, small_device

from outrider.kv.compiled_attention import CompiledAttention
from outrider.kv.head_shape import HeadShape
from outrider.kv.per_layer_attention import PerLayerAttention
from outrider.kv.reference_attention import ReferenceAttention
from outrider.ops.tree.draft_tree import DraftTree
from outrider.step.arena import Arena
from outrider.step.fill_plan import fill, resolve_lengths

CASES = {
    "decode": {"lengths": [0, 1, 15, 301]},
    "trees": {"lengths": [4, 0, 31], "nodes": 9},
    "chunks": {"lengths": [5, 40], "nodes": 2, "chunks": {3: (17, 9), 4: (60, 3)}},
}
MODELS = {"heads": Model(), "latents": latent_model(heads=3), "windows": Model(window=5)}


def per_layer(backend, case):
    return PerLayerAttention(backend, page_size=case.model.page_size)


BACKENDS = {"reference": ReferenceAttention, "compiled": CompiledAttention}


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
@pytest.mark.parametrize("sizes", CASES.values(), ids=list(CASES))
def test_both_ways_give_the_same_bits(sizes, model, name):
    backend = BACKENDS[name](page_size=model.page_size, dtype=model.dtype)
    case = make_case(model, seed=3, **sizes)
    assert torch.equal(run(per_layer(backend, case), case), run(backend, case))


def test_both_ways_give_the_same_bits_where_rows_draft_different_numbers_of_nodes():
    backend = ReferenceAttention(page_size=3, dtype=torch.float32)
    case = ragged(make_case(Model(), lengths=[4, 0, 31], nodes=5), absent=[3, 0, 4], padding=2)
    assert torch.equal(run(per_layer(backend, case), case), run(backend, case))


@pytest.mark.slow
def test_both_ways_give_the_same_bits_with_the_kernels_of_a_gpu():
    pytest.importorskip("triton")
    from outrider.kv.triton_attention import TritonAttention

    model = Model(kv_heads=1, head_dim=16)
    heads = HeadShape(heads=model.heads, head_dim=model.head_dim)
    backend = TritonAttention(page_size=model.page_size, users=[heads])
    case = make_case(model, lengths=[4, 31], nodes=3, chunks={3: (7, 5)})
    assert torch.equal(run(per_layer(backend, case), case), run(backend, case))


@pytest.mark.parametrize("is_per_layer", [True, False])
def test_pages_that_move_after_the_fill_are_read_by_the_other_way_alone(is_per_layer):
    """What the two ways differ in: without this, comparing them would prove nothing."""
    case = make_case(Model(), lengths=[7, 9], nodes=3)
    backend = ReferenceAttention(page_size=3, dtype=torch.float32)
    before = run(backend, case)
    tested = per_layer(backend, case) if is_per_layer else backend
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


def filled(attention, *, page_size=3, own_nodes=None, first_node=0, **batch):
    """A device, and a plan of it that was filled for this batch, with padding."""
    device = small_device(
        random.Random(1),
        page_size=page_size,
        nodes=5,
        pad=4,
        attention=attention,
        is_ragged=own_nodes is not None,
    )
    for row, length in batch["decodes"].items():
        device.table.lengths[row] = length
    whole = batch_of(**batch, nodes=5, topk=2, own_nodes=own_nodes)
    plan = device.planner.plan(whole, sampling_flags=NO_FLAGS)
    resolve_lengths(plan, device.table)
    tree = random_tree(plan.shape.rows, plan.shape.nodes, own_nodes)
    fill(
        plan,
        tree,
        table=device.table,
        attention=attention,
        page_size=page_size,
        first_node=first_node,
    )
    return device, plan


def random_tree(rows, nodes, own_nodes):
    """Each node after any earlier one; nodes that a row does not have are absent."""
    rng = random.Random(2)
    parents = torch.tensor([[-1] + [rng.randrange(n) for n in range(1, nodes)]] * rows)
    depths, ancestors = torch.zeros_like(parents), torch.ones_like(parents)
    for node in range(1, nodes):
        before = parents[:, node : node + 1]
        depths[:, node] = depths.gather(1, before)[:, 0] + 1
        ancestors[:, node] = ancestors.gather(1, before)[:, 0] | (1 << node)
    tokens = torch.full((rows, nodes), 7)
    for row, own in enumerate(own_nodes or ()):
        tokens[row, own:] = -1
    if own_nodes:
        tokens[len(own_nodes) :, 1:] = -1
    return DraftTree(tokens=tokens, parents=parents, depths=depths, ancestors=ancestors)


STEPS = {
    "decode": {"decodes": {1: 4, 2: 0, 4: 17}, "chunks": {}},
    "a draft level": {"decodes": {1: 4, 2: 9}, "chunks": {}, "first_node": 3},
    "chunks": {"decodes": {}, "chunks": {2: (7, [5] * 9), 3: (0, [6])}},
    "both": {"decodes": {1: 4, 4: 20}, "chunks": {2: (7, [5] * 9), 3: (30, [6] * 2)}},
    "ragged": {"decodes": {1: 4, 2: 0, 4: 17}, "chunks": {3: (2, [5] * 3)}, "own_nodes": [2, 5, 1]},
}


@pytest.mark.fast_cases(5)
@pytest.mark.parametrize("step", STEPS)
def test_layers_find_the_places_of_their_kv_without_those_of_the_plan(step):
    backend = ReferenceAttention(page_size=3, dtype=torch.float32)
    attention = PerLayerAttention(backend, page_size=3)
    _, plan = filled(attention, **STEPS[step])
    slots = plan.queries.slots
    is_padding = slots < 3
    assert is_padding.any()
    unknown = torch.where(is_padding, slots, 1000 + torch.arange(len(slots)))
    assert torch.equal(attention.write_slots(plan.attention, unknown), slots)


@pytest.mark.parametrize("is_per_layer", [True, False])
def test_pages_that_move_after_the_fill_are_written_by_the_other_way_alone(is_per_layer):
    """A plan that bakes its write targets does not see the move."""
    backend = ReferenceAttention(page_size=3, dtype=torch.float32)
    tested = PerLayerAttention(backend, page_size=3) if is_per_layer else backend
    device, plan = filled(tested, **STEPS["both"])
    before = plan.queries.slots.clone()
    device.table.pages[1:] = device.table.pages[1:].roll(1, 0)
    found = tested.write_slots(plan.attention, plan.queries.slots)
    is_real = before >= 3
    assert torch.equal(found[~is_real], before[~is_real])
    assert (found[is_real] != before[is_real]).all() == is_per_layer
    assert torch.equal(found, before) is not is_per_layer
