"""The Triton backend, interpreted, against the reference at odd sizes. tests/gpu compiles it."""

import random

import pytest
import torch
from support.attention_cases import (
    Model,
    as_chain,
    assert_chunks_equal_whole,
    assert_like_reference,
    assert_nodes_equal_decodes,
    assert_ragged_like_whole,
    chain_ancestors,
    level_ancestors,
    make_case,
    row_alone,
    run,
)

from outrider.kv.head_shape import HeadShape
from outrider.kv.triton_attention import TritonAttention

pytest.importorskip("triton")

BORDERS = [0, 1, 31, 32]  # around the border of a block of keys


def backend_of(model):
    users = [HeadShape(heads=1, head_dim=16), HeadShape(heads=model.heads, head_dim=model.head_dim)]
    return TritonAttention(page_size=model.page_size, users=users)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("page_size", [1, 3, 16])
@pytest.mark.parametrize("nodes", [1, 5, 9])
def test_decode_rows_see_their_history_and_their_path(page_size, nodes):
    model = Model(kv_heads=1, page_size=page_size)
    case = make_case(model, lengths=BORDERS, nodes=nodes, seed=nodes)
    assert_like_reference(backend_of(model), case)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    ("kv_heads", "group", "head_dim"), [(1, 1, 16), (3, 1, 64), (1, 4, 80), (2, 16, 96)]
)
def test_any_head_geometry_is_padded_to_tiles(kv_heads, group, head_dim):
    model = Model(kv_heads=kv_heads, group=group, head_dim=head_dim)
    case = make_case(model, lengths=[0, 37], nodes=2, chunks={3: (7, 30)})
    assert_like_reference(backend_of(model), case)


def test_half_precision_is_as_close_as_its_dtype_allows():
    model = Model(dtype=torch.float16, page_size=16)  # the interpreter has no dot of bf16
    case = make_case(model, lengths=[5, 70], nodes=4, chunks={3: (0, 9)})
    assert_like_reference(backend_of(model), case)


def test_ragged_rows_have_the_bits_of_rows_with_all_nodes():
    model = Model(kv_heads=1, group=2)
    case = make_case(model, lengths=[0, 31, 5], nodes=4, chunks={4: (3, 5)}, seed=9)
    assert_ragged_like_whole(backend_of(model), case, absent=[3, 0, 2], padding=2)


@pytest.mark.slow
def test_a_tree_of_64_nodes_uses_every_bit_of_its_masks():
    model = Model(kv_heads=1, group=1)
    case = make_case(model, lengths=[20], nodes=64, seed=3)
    assert_like_reference(backend_of(model), case)


@pytest.mark.slow
@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("page_size", [128, 256])
def test_a_page_may_be_longer_than_any_tile(page_size):
    model = Model(kv_heads=1, page_size=page_size)
    chunks = {5: (120, 20), 6: (0, 3)}
    case = make_case(model, lengths=[0, 127, 255, 256], nodes=3, chunks=chunks, seed=page_size)
    assert_like_reference(backend_of(model), case)
    assert page_size in backend_of(model).capabilities.page_sizes


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("step", [1, 2, 4])
def test_a_draft_level_sees_the_scratch_nodes_of_earlier_steps(step):
    model, topk = Model(), 3
    ancestors = level_ancestors(random.Random(step), rows=2, topk=topk, step=step)
    case = make_case(
        model, lengths=[30, 61], nodes=topk, reach=step * topk, ancestors=ancestors, seed=step
    )
    assert_like_reference(backend_of(model), case)


@pytest.mark.slow
def test_texts_of_several_splits_are_merged():
    model = Model(kv_heads=1, group=2)
    case = make_case(model, lengths=[254, 256, 600, 3], nodes=2)
    assert_like_reference(backend_of(model), case)


@pytest.mark.slow
def test_mixed_steps_run_trees_and_chunks():
    model = Model()
    chunks = {4: (0, 5), 6: (33, 1), 5: (31, 34)}
    case = make_case(model, lengths=[5, 44, 2], nodes=5, chunks=chunks)
    assert_like_reference(backend_of(model), case)


@pytest.mark.slow
def test_padding_chunks_are_finite_however_long_they_are():
    model = Model()
    case = make_case(model, lengths=[], chunks={1: (2, 5), 0: (0, 5)})
    short = make_case(model, lengths=[3], chunks={0: (0, 90)})
    assert run(backend_of(model), case).isfinite().all()
    assert run(backend_of(model), short).isfinite().all()


@pytest.mark.slow
def test_a_node_of_a_tree_has_the_bits_of_a_decode_of_its_path():
    model = Model(kv_heads=1, group=2)
    case = make_case(model, lengths=[28, 254], nodes=4, seed=4)
    assert_nodes_equal_decodes(backend_of(model), case)


def test_a_chain_has_the_bits_of_the_same_tree():
    model = Model(kv_heads=1)
    case = make_case(model, lengths=[0, 30], nodes=4, ancestors=chain_ancestors(2, 4), seed=4)
    assert_like_reference(backend_of(model), as_chain(case))
    assert torch.equal(run(backend_of(model), case), run(backend_of(model), as_chain(case)))


def test_a_row_has_the_same_bits_alone_and_in_a_larger_shape():
    model = Model(kv_heads=1)
    case = make_case(model, lengths=[40, 300, 7], nodes=2, seed=6)
    out, nodes = run(backend_of(model), case), case.shape.nodes
    for row in range(case.shape.rows):
        alone = run(backend_of(model), row_alone(case, row), largest=case.shape)
        assert torch.equal(out[row * nodes : (row + 1) * nodes], alone)


@pytest.mark.slow
def test_a_cut_prompt_has_the_bits_of_the_whole_one():
    model = Model(kv_heads=1)
    case = make_case(model, lengths=[], chunks={1: (0, 90)}, seed=7)
    assert_chunks_equal_whole(backend_of(model), case, cuts=[1, 33, 64])


def test_the_workspace_fits_the_larger_of_two_models():
    small, large = Model(kv_heads=1, group=1), Model(kv_heads=2, group=2)
    users = [HeadShape(heads=m.heads, head_dim=m.head_dim) for m in (small, large)]
    backend = TritonAttention(page_size=small.page_size, users=users)
    for model in (small, large):
        assert_like_reference(backend, make_case(model, lengths=[300], nodes=2))
