"""The compiled attention kernels at real sizes: close to the reference, and equal bit for bit."""

import random
from dataclasses import replace

import pytest
import torch
from support.attention_cases import (
    Model,
    as_chain,
    assert_chunk_equals_decodes,
    assert_chunks_equal_whole,
    assert_like_reference,
    assert_nodes_equal_decodes,
    assert_ragged_like_whole,
    chain_ancestors,
    decode_of_node,
    level_ancestors,
    make_case,
    row_alone,
    run,
)

from outrider.kv.head_shape import HeadShape
from outrider.kv.triton_attention import TritonAttention
from outrider.ops.attention.attention_rule import WHOLE_TEXT
from outrider.step.arena import Arena

pytest.importorskip("triton")

LLAMA = Model(kv_heads=8, group=4, head_dim=128, page_size=16, dtype=torch.bfloat16, device="cuda")
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def model_of(*, dtype=torch.bfloat16, kv_heads=2, group=4, head_dim=128, page_size=16):
    return Model(
        kv_heads=kv_heads,
        group=group,
        head_dim=head_dim,
        page_size=page_size,
        dtype=dtype,
        device="cuda",
    )


def backend_of(model):
    users = [HeadShape(heads=model.heads, head_dim=model.head_dim)]
    return TritonAttention(page_size=model.page_size, users=users)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("nodes", [1, 6, 16, 64])
def test_decode_rows_are_close_to_the_reference(dtype, nodes):
    model = model_of(dtype=dtype)
    case = make_case(model, lengths=[0, 1, 31, 255, 256, 1000, 3000], nodes=nodes, seed=nodes)
    assert_like_reference(backend_of(model), case)


@pytest.mark.parametrize(
    ("dtype", "head_dim", "group"),
    [
        (torch.bfloat16, 64, 1),
        (torch.bfloat16, 80, 3),
        (torch.bfloat16, 96, 16),
        (torch.bfloat16, 256, 4),
        (torch.float16, 64, 16),
        (torch.float32, 80, 3),
        (torch.float32, 256, 1),
    ],
)
def test_any_head_geometry_is_close_to_the_reference(dtype, head_dim, group):
    model = model_of(dtype=dtype, head_dim=head_dim, group=group)
    case = make_case(model, lengths=[37, 600], nodes=5, chunks={3: (70, 300), 4: (0, 5)})
    assert_like_reference(backend_of(model), case)


@pytest.mark.parametrize("page_size", [1, 3, 64, 128, 256])
def test_any_page_size_is_close_to_the_reference(page_size):
    model = model_of(page_size=page_size)
    case = make_case(model, lengths=[37, 600], nodes=5, chunks={3: (70, 300), 4: (0, 5)})
    assert_like_reference(backend_of(model), case)


def test_draft_levels_and_long_texts_are_close_to_the_reference():
    backend = backend_of(LLAMA)
    ancestors = level_ancestors(random.Random(1), rows=3, topk=4, step=5)
    case = make_case(LLAMA, lengths=[30, 61, 700], nodes=4, reach=20, ancestors=ancestors)
    assert_like_reference(backend, case)
    assert_like_reference(backend, make_case(LLAMA, lengths=[20_000, 9], nodes=2))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", [[28, 513], [0, 63, 64, 250, 700]])  # small and large tiles
def test_a_node_of_a_tree_has_the_bits_of_a_decode_of_its_path(dtype, lengths):
    model = model_of(dtype=dtype)
    case = make_case(model, lengths=lengths, nodes=16, seed=4)
    assert_nodes_equal_decodes(backend_of(model), case)


@pytest.mark.parametrize(("head_dim", "group"), [(16, 2), (32, 5), (64, 1), (80, 3), (256, 8)])
def test_a_node_has_the_bits_of_a_decode_in_any_head_geometry(head_dim, group):
    model = model_of(head_dim=head_dim, group=group)
    case = make_case(model, lengths=[29, 511, 1, 2, 3], nodes=7, seed=4)
    assert_nodes_equal_decodes(backend_of(model), case)


@pytest.mark.parametrize("rows", [3, 40, 300])  # parallel splits, and tiles that read whole texts
@pytest.mark.parametrize("is_chain", [False, True])
def test_ragged_rows_have_the_bits_of_rows_with_all_nodes(rows, is_chain):
    lengths = [(37 * row) % 900 for row in range(rows)]
    ancestors = {"ancestors": chain_ancestors(rows, 6)} if is_chain else {}
    case = make_case(
        LLAMA, lengths=lengths, nodes=6, chunks={rows + 1: (3, 9)}, seed=5, **ancestors
    )
    case = as_chain(case) if is_chain else case
    absent = [row % 6 for row in range(rows)]
    assert_ragged_like_whole(backend_of(LLAMA), case, absent=absent, padding=rows // 2)


def test_a_chain_has_the_bits_of_a_decode_in_both_kernels():
    case = make_case(LLAMA, lengths=[250, 90], nodes=6, ancestors=chain_ancestors(2, 6), seed=8)
    backend = backend_of(LLAMA)
    assert torch.equal(run(backend, case), run(backend, as_chain(case)))
    assert_nodes_equal_decodes(backend, as_chain(case))


@pytest.mark.parametrize(("nodes", "is_tree"), [(1, False), (6, False), (6, True)])
def test_a_row_has_the_same_bits_alone_and_among_64(nodes, is_tree):
    # Alone, its splits run in parallel; among 64 rows, each tile reads its whole text.
    rng = random.Random(9)
    lengths = [rng.choice([255, 256, 257, rng.randrange(1200)]) for _ in range(64)]
    ancestors = None if is_tree else chain_ancestors(64, nodes)
    case = make_case(LLAMA, lengths=lengths, nodes=nodes, ancestors=ancestors, seed=6)
    case = case if is_tree else as_chain(case)
    out = run(backend_of(LLAMA), case)
    for row in range(0, 64, 7):
        alone = run(backend_of(LLAMA), row_alone(case, row), largest=case.shape)
        assert torch.equal(out[row * nodes : (row + 1) * nodes], alone)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_cut_prompt_has_the_bits_of_the_whole_one(dtype):
    model = model_of(dtype=dtype)
    case = make_case(model, lengths=[], chunks={1: (0, 1500)}, seed=7)
    assert_chunks_equal_whole(backend_of(model), case, cuts=[1, 64, 777, 1024])


# Around borders of blocks and splits, and past the equal splits of 256 keys.
POSITIONS = [0, 1, 31, 32, 63, 64, 200, 255, 256, 257, 511, 512, 800, 1023, 1024, 1499]
FAR_POSITIONS = [2047, 2048, 5000, 8191, 8192, 8193, 9215, 9216, 9299]


@pytest.mark.parametrize(
    ("dtype", "head_dim", "group"),
    [
        (torch.bfloat16, 128, 4),
        (torch.float16, 128, 4),
        (torch.float32, 128, 4),
        (torch.bfloat16, 16, 2),
        (torch.bfloat16, 32, 5),
        (torch.bfloat16, 64, 1),
        (torch.bfloat16, 80, 3),
        (torch.bfloat16, 96, 16),
        (torch.bfloat16, 256, 8),
        (torch.float32, 80, 3),
    ],
)
def test_a_token_has_the_same_bits_in_a_chunk_and_as_a_decode_row(dtype, head_dim, group):
    model = model_of(dtype=dtype, head_dim=head_dim, group=group)
    case = make_case(model, lengths=[], chunks={1: (0, 1500)}, seed=head_dim)
    assert_chunk_equals_decodes(backend_of(model), case, POSITIONS)


def test_a_long_chunk_has_the_bits_of_decode_rows():
    case = make_case(model_of(kv_heads=1), lengths=[], chunks={1: (0, 9300)}, seed=2)
    assert_chunk_equals_decodes(backend_of(case.model), case, FAR_POSITIONS)
    for position in FAR_POSITIONS[-3:]:  # few rows: splits run in parallel
        assert_chunk_equals_decodes(backend_of(case.model), case, [position])


def test_a_captured_step_follows_new_lengths():
    case = make_case(LLAMA, lengths=[300, 40], nodes=5, chunks={3: (10, 70)}, seed=10)
    backend, arena = backend_of(LLAMA), Arena(torch.device("cuda"))
    backend.reserve(arena, case.shape)
    plan = backend.bind(arena, case.shape)
    run(backend, case)  # compiles before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        backend.fill(plan, case.scope)
        out = backend.run(case.query, case.layer, plan, case.model.rule)
    for lengths in ([7, 299], [256, 0]):
        case.scope.decode.lengths.copy_(torch.tensor(lengths))
        arena.poison()
        graph.replay()
        assert torch.equal(out, run(backend, case))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [1, 33, 128, 1024])
def test_sliding_windows_and_capped_scores_are_close_to_the_reference(window, dtype):
    model = replace(model_of(dtype=dtype), window=window, soft_cap=2.0)
    chunks = {6: (70, 300), 7: (0, 5), 8: (1500, 90)}
    case = make_case(model, lengths=[0, 30, 256, 1000, 3000], nodes=6, chunks=chunks)
    assert_like_reference(backend_of(model), case)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [33, 256, 1024])
def test_attention_chunks_are_close_to_the_reference(size, dtype):
    model = replace(model_of(dtype=dtype), attention_chunk=size)
    chunks = {6: (70, 300), 7: (0, 5), 8: (1500, 900)}
    case = make_case(model, lengths=[0, 30, 256, 1022, 3000], nodes=6, chunks=chunks)
    assert_like_reference(backend_of(model), case)


@pytest.mark.parametrize("style", [{"window": 33}, {"window": 700}, {"attention_chunk": 185}])
@pytest.mark.parametrize("rows", [3, 300])  # parallel splits, and tiles that read whole texts
def test_a_windowed_node_has_the_bits_of_a_decode_of_its_path(rows, style):
    model = replace(LLAMA, **style)
    case = make_case(model, lengths=[(37 * row) % 1200 for row in range(rows)], nodes=5, seed=4)
    out, backend = run(backend_of(model), case), backend_of(model)
    for row in (0, 1, rows - 1):
        for node in range(5):
            alone = run(backend, decode_of_node(case, row, node))
            assert torch.equal(out[row * 5 + node], alone[0]), (row, node)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [128, WHOLE_TEXT])
def test_sinks_are_close_to_the_reference(window, dtype):
    model = replace(model_of(dtype=dtype), window=window, has_sinks=True)
    chunks = {6: (70, 300), 7: (0, 5), 8: (1500, 90)}
    case = make_case(model, lengths=[0, 30, 256, 1000, 3000], nodes=6, chunks=chunks)
    assert_like_reference(backend_of(model), case)


@pytest.mark.parametrize("rows", [3, 300])  # parallel splits, and tiles that read whole texts
def test_a_node_with_a_sink_has_the_bits_of_a_decode_of_its_path(rows):
    model = replace(LLAMA, has_sinks=True)
    case = make_case(model, lengths=[(37 * row) % 1200 for row in range(rows)], nodes=5, seed=4)
    out, backend = run(backend_of(model), case), backend_of(model)
    for row in (0, 1, rows - 1):
        for node in range(5):
            alone = run(backend, decode_of_node(case, row, node))
            assert torch.equal(out[row * 5 + node], alone[0]), (row, node)


@pytest.mark.parametrize("has_sinks", [False, True])
def test_a_windowed_chunk_has_the_bits_of_decode_rows(has_sinks):
    model = replace(model_of(kv_heads=1), window=500, has_sinks=has_sinks)
    case = make_case(model, lengths=[], chunks={1: (0, 2000)}, seed=2)
    assert_chunk_equals_decodes(backend_of(model), case, [0, 63, 499, 500, 501, 1023, 1999])


@pytest.mark.parametrize("size", [500, 512])  # of 512, most blocks need no mask
def test_attention_chunks_of_a_prompt_have_the_bits_of_decode_rows(size):
    model = replace(model_of(kv_heads=1), attention_chunk=size)
    case = make_case(model, lengths=[], chunks={1: (0, 2000)}, seed=2)
    places = [0, 63, size - 1, size, size + 1, 1023, 1024, 1999]
    assert_chunk_equals_decodes(backend_of(model), case, places)
