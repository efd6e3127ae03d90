"""Latent attention: the reference by hand, and the Triton backend, interpreted, against it."""

import random

import pytest
import torch
from support.attention_cases import (
    SCALE,
    as_chain,
    assert_chunks_equal_whole,
    assert_like_reference,
    assert_nodes_equal_decodes,
    assert_ragged_like_whole,
    chain_ancestors,
    latent_model,
    level_ancestors,
    make_case,
    row_alone,
    run,
)

from outrider.kv.head_shape import HeadShape
from outrider.kv.reference_attention import ReferenceAttention
from outrider.kv.triton_attention import TritonAttention

BORDERS = [0, 1, 31, 32]  # around the border of a block of latents


def backend_of(model):
    pytest.importorskip("triton")
    users = [
        HeadShape(heads=1, head_dim=16),
        HeadShape(heads=model.heads, head_dim=model.latent, is_latent=True),
    ]
    return TritonAttention(page_size=model.page_size, users=users)


@pytest.mark.parametrize("page_size", [1, 3])
def test_the_reference_reads_latents_as_keys_and_their_first_channels_as_values(page_size):
    model = latent_model(heads=3, latent=20, rope=6, page_size=page_size)
    case = make_case(model, lengths=[5, 0], nodes=4, chunks={3: (7, 3)})
    out = run(ReferenceAttention(page_size=page_size, dtype=model.dtype), case)
    flat, scope = case.layer.view(-1, model.head_dim).double(), case.scope

    def read(token, row, positions):
        pages = scope.page_table[row].tolist()
        stored = flat[[pages[p // page_size] * page_size + p % page_size for p in positions]]
        weights = (case.query[token].double() @ stored.T * SCALE).softmax(-1)
        return weights @ stored[:, : model.latent]

    for row, length in enumerate([5, 0]):
        for node in range(4):
            mask = int(scope.ancestors[row, node])
            seen = [*range(length), *(length + n for n in range(4) if mask >> n & 1)]
            right = read(row * 4 + node, row + 1, seen)
            torch.testing.assert_close(out[row * 4 + node].double(), right, atol=1e-5, rtol=0)
    for offset in range(3):
        right = read(8 + offset, 3, range(7 + offset + 1))
        torch.testing.assert_close(out[8 + offset].double(), right, atol=1e-5, rtol=0)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("page_size", [1, 3, 16])
@pytest.mark.parametrize("nodes", [1, 5])
def test_decode_rows_see_their_history_and_their_path(page_size, nodes):
    model = latent_model(heads=3, page_size=page_size)
    case = make_case(model, lengths=BORDERS, nodes=nodes, seed=nodes)
    assert_like_reference(backend_of(model), case)


@pytest.mark.fast_cases(1)
def test_a_page_may_be_longer_than_any_tile():
    model = latent_model(heads=3, page_size=128)
    case = make_case(model, lengths=[0, 127, 130], nodes=3, chunks={4: (120, 20)}, seed=128)
    assert_like_reference(backend_of(model), case)


@pytest.mark.slow
@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    ("heads", "latent", "rope"), [(1, 16, 16), (5, 24, 8), (16, 40, 16), (40, 32, 6)]
)
def test_any_geometry_is_padded_to_tiles(heads, latent, rope):
    model = latent_model(heads=heads, latent=latent, rope=rope)
    case = make_case(model, lengths=[0, 37], nodes=2, chunks={3: (7, 30)})
    assert_like_reference(backend_of(model), case)


@pytest.mark.parametrize("heads", [4, 20, 70])  # several nodes in a tile, one, a part of one
def test_half_precision_is_as_close_as_its_dtype_allows(heads):
    model = latent_model(heads=heads, latent=64, dtype=torch.float16, page_size=16)
    case = make_case(model, lengths=[5, 70], nodes=4, chunks={3: (0, 9)})
    assert_like_reference(backend_of(model), case)


@pytest.mark.parametrize("step", [1, 4])
def test_a_draft_level_sees_the_scratch_nodes_of_earlier_steps(step):
    model, topk = latent_model(heads=4), 3
    ancestors = level_ancestors(random.Random(step), rows=2, topk=topk, step=step)
    case = make_case(
        model, lengths=[30, 61], nodes=topk, reach=step * topk, ancestors=ancestors, seed=step
    )
    assert_like_reference(backend_of(model), case)


def test_texts_of_several_splits_are_merged():
    model = latent_model(heads=2)
    case = make_case(model, lengths=[254, 256, 600, 3], nodes=2)
    assert_like_reference(backend_of(model), case)


def test_mixed_steps_run_trees_and_chunks():
    model = latent_model(heads=4)
    chunks = {4: (0, 5), 6: (33, 1), 5: (31, 34)}
    case = make_case(model, lengths=[5, 44, 2], nodes=5, chunks=chunks)
    assert_like_reference(backend_of(model), case)


def test_padding_chunks_are_finite_however_long_they_are():
    model = latent_model(heads=4)
    case = make_case(model, lengths=[3], chunks={0: (0, 90)})
    assert run(backend_of(model), case).isfinite().all()


def test_ragged_rows_have_the_bits_of_rows_with_all_nodes():
    model = latent_model(heads=2)
    case = make_case(model, lengths=[0, 31, 5], nodes=4, chunks={4: (3, 5)}, seed=9)
    assert_ragged_like_whole(backend_of(model), case, absent=[3, 0, 2], padding=2)


@pytest.mark.slow
@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("heads", [2, 20])
def test_a_node_of_a_tree_has_the_bits_of_a_decode_of_its_path(heads):
    model = latent_model(heads=heads)
    case = make_case(model, lengths=[28, 254], nodes=4, seed=4)
    assert_nodes_equal_decodes(backend_of(model), case)


def test_a_chain_has_the_bits_of_the_same_tree():
    model = latent_model(heads=3)
    case = make_case(model, lengths=[0, 30], nodes=4, ancestors=chain_ancestors(2, 4), seed=4)
    assert_like_reference(backend_of(model), as_chain(case))
    assert torch.equal(run(backend_of(model), case), run(backend_of(model), as_chain(case)))


def test_a_row_has_the_same_bits_alone_and_in_a_larger_shape():
    model = latent_model(heads=3)
    case = make_case(model, lengths=[40, 300, 7], nodes=2, seed=6)
    out, nodes = run(backend_of(model), case), case.shape.nodes
    for row in range(case.shape.rows):
        alone = run(backend_of(model), row_alone(case, row), largest=case.shape)
        assert torch.equal(out[row * nodes : (row + 1) * nodes], alone)


def test_a_cut_prompt_has_the_bits_of_the_whole_one():
    model = latent_model(heads=3)
    case = make_case(model, lengths=[], chunks={1: (0, 70)}, seed=7)
    assert_chunks_equal_whole(backend_of(model), case, cuts=[1, 33, 64])
