"""Sliding windows, attention chunks, capped scores and sinks in backends of keys and values."""

from dataclasses import replace

import pytest
import torch
from support.attention_cases import (
    SCALE,
    Model,
    assert_chunks_equal_whole,
    assert_like_reference,
    assert_nodes_equal_decodes,
    assert_ragged_like_whole,
    make_case,
    row_alone,
    run,
)

from outrider.kv.compiled_attention import CompiledAttention
from outrider.kv.head_shape import HeadShape
from outrider.kv.reference_attention import ReferenceAttention
from outrider.kv.triton_attention import TritonAttention

pytest.importorskip("triton")

MODEL = Model(kv_heads=1, group=2, head_dim=16, page_size=5)
WINDOWS = [1, 2, 7, 32, 33, 300]
STYLES = {
    "plain": {},
    "capped": {"soft_cap": 0.5},
    "sinks": {"has_sinks": True},
    "both": {"soft_cap": 0.5, "has_sinks": True},
}
STEP = {"lengths": [0, 6, 33, 61], "nodes": 6, "chunks": {5: (0, 40), 6: (37, 9)}}


def backends(model):
    users = [HeadShape(heads=model.heads, head_dim=model.head_dim)]
    return {
        "reference": ReferenceAttention(page_size=model.page_size, dtype=model.dtype),
        "compiled": CompiledAttention(page_size=model.page_size, dtype=model.dtype),
        "triton": TritonAttention(page_size=model.page_size, users=users),
    }


def text_slots(case, row, position, path):
    """Slots of a text, oldest first: the history before a position, then nodes of a path."""
    places = [*range(position), *(position + node for node in path)]
    pages, size = case.scope.page_table[row].tolist(), case.model.page_size
    return [pages[place // size] * size + place % size for place in places]


def softmax_over(case, query, slots):
    """Attention of one query token over the slots of its text that it sees, the slow way."""
    model, vectors = case.model, case.layer.flatten(0, 1)
    before = (len(slots) - 1) // model.attention_chunk * model.attention_chunk
    newest = vectors[slots[before:][-model.window :]].double()  # [keys, 2 * kv_heads, head_dim]
    scores = query.double() @ newest[:, 0].T * SCALE
    if model.soft_cap:
        scores = model.soft_cap * (scores / model.soft_cap).tanh()
    if model.has_sinks:
        scores = torch.cat([scores, model.sinks[:, None].double()], dim=1)
    return (scores.softmax(-1)[:, : len(newest)] @ newest[:, 1]).float()


def expected(case):
    """The outputs of all query tokens."""
    out, nodes = [], case.shape.nodes
    for index in range(case.shape.num_nodes):
        row, node = divmod(index, nodes)
        mask, length = int(case.scope.ancestors[row, node]), int(case.scope.decode.lengths[row])
        path = [n for n in range(nodes) if mask >> n & 1]
        slots = text_slots(case, int(case.scope.decode.rows[row]), length, path)
        out.append(softmax_over(case, case.query[index], slots))
    chunk, first = case.scope.chunk, case.shape.num_nodes
    for row, start, count in zip(chunk.rows, chunk.starts, chunk.counts, strict=True):
        for offset in range(int(count)):
            slots = text_slots(case, int(row), int(start) + offset, [0])
            out.append(softmax_over(case, case.query[first + offset], slots))
        first += int(count)
    return torch.stack(out)


@pytest.mark.parametrize("name", ["reference", "compiled"])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("window", WINDOWS)
def test_a_query_sees_the_newest_keys_of_its_own_text(window, style, name):
    case = make_case(replace(MODEL, window=window, **STYLES[style]), seed=window, **STEP)
    out = run(backends(case.model)[name], case)
    torch.testing.assert_close(out, expected(case), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["reference", "compiled"])
@pytest.mark.parametrize("style", ["plain", "both"])
@pytest.mark.parametrize("size", [1, 5, 31, 32, 34, 64])
def test_a_query_sees_the_keys_of_its_own_attention_chunk(size, style, name):
    """Trees cross the borders of chunks at 34 and 64."""
    case = make_case(replace(MODEL, attention_chunk=size, **STYLES[style]), seed=size, **STEP)
    out = run(backends(case.model)[name], case)
    torch.testing.assert_close(out, expected(case), atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("size", [40, 64])
def test_attention_chunks_in_triton_are_like_the_reference(size):
    """Of 64, the last tokens of the prompt see blocks that need no mask."""
    model = replace(MODEL, attention_chunk=size)
    case = make_case(model, lengths=[61], nodes=4, chunks={4: (62, 60)}, seed=size)
    assert_like_reference(backends(case.model)["triton"], case)


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("window", [1, 3, 32, 33])
def test_triton_is_like_the_reference(window, style):
    model = replace(MODEL, window=window, **STYLES[style])
    case = make_case(model, lengths=[4, 61], nodes=4, chunks={3: (37, 9)}, seed=window)
    assert_like_reference(backends(case.model)["triton"], case)


def assert_one_text(model, name):
    """Trees, chunks and batches: history around the borders of blocks and of splits."""
    backend = backends(model)[name]
    trees = make_case(model, lengths=[28, 270], nodes=4, seed=4)
    assert_nodes_equal_decodes(backend, trees)
    alone = run(backend, row_alone(trees, 1), largest=trees.shape)
    assert torch.equal(run(backend, trees)[4:], alone)
    assert_ragged_like_whole(backend, trees, absent=[3, 0])
    prompt = make_case(model, lengths=[], chunks={1: (0, 70)}, seed=7)
    assert_chunks_equal_whole(backend, prompt, cuts=[1, 33, 64])


@pytest.mark.parametrize("name", ["reference", "compiled"])
@pytest.mark.parametrize("window", [3, 40, 268])
def test_no_way_to_compute_a_windowed_text_changes_a_bit(window, name):
    assert_one_text(replace(MODEL, window=window, group=1), name)


@pytest.mark.parametrize("name", ["reference", "compiled"])
@pytest.mark.parametrize("size", [30, 64, 272])
def test_no_way_to_compute_a_text_in_attention_chunks_changes_a_bit(size, name):
    assert_one_text(replace(MODEL, attention_chunk=size, group=1), name)


@pytest.mark.parametrize("name", ["reference", "compiled"])
def test_no_way_to_compute_a_text_with_sinks_changes_a_bit(name):
    assert_one_text(replace(MODEL, has_sinks=True), name)


@pytest.mark.parametrize("name", ["reference", "compiled"])
def test_a_pool_of_codes_has_sinks_too(name):
    case = make_case(replace(MODEL, has_sinks=True), **STEP)
    codes = replace(case, layer=case.layer.to(torch.float8_e4m3fn))
    right = expected(replace(case, layer=codes.layer.float()))
    torch.testing.assert_close(run(backends(case.model)[name], codes), right, atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "style",
    [
        {"window": 40, "group": 1},
        {"window": 268, "group": 1},
        {"window": 40, "has_sinks": True},
        {"attention_chunk": 64, "group": 1},
    ],
)
def test_no_way_to_run_the_kernels_changes_a_bit(style):
    assert_one_text(replace(MODEL, **style), "triton")


@pytest.mark.parametrize("name", ["reference", "compiled"])
def test_keys_before_the_window_may_hold_anything(name):
    model = replace(MODEL, window=4)
    case = make_case(model, lengths=[40])
    old = text_slots(case, 1, 37, [])
    layer = case.layer.clone()
    layer.flatten(0, 1)[old, : model.kv_heads] = float("nan")
    backend = backends(model)[name]
    assert torch.equal(run(backend, replace(case, layer=layer)), run(backend, case))
    assert layer.flatten(0, 1)[old].isnan().any(), "these keys have tokens: they stay as they are"
