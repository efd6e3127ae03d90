"""Latent attention, compiled, at the sizes of DeepSeek, and DeepSeek in the engine."""

import random
from dataclasses import replace

import pytest
import torch
from support.attention_cases import (
    SCALE,
    as_chain,
    assert_chunk_equals_decodes,
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
from support.engines import Shape
from support.matrix import MIXED, SAMPLINGS, Case, mismatches, run_case
from support.model_set import make_models

from benchmarks.dummy_models import dummy_decoder
from benchmarks.steps.body import find_body
from outrider.kv.head_shape import HeadShape
from outrider.kv.triton_attention import TritonAttention
from outrider.step.arena import Arena

pytest.importorskip("triton")

from support.latent_cases import check_head_linear, check_rotated, check_stored

from outrider.ops.attention import latent_decode_triton as kernel
from outrider.ops.attention.latent_slices_triton import ways_to_slice
from outrider.ops.linear.head_linear_triton import head_linear_triton

DRAFTS = [("none", "chain"), ("twin", "chain"), ("relative", "tree"), ("eagle3", "wide")]
DRAFTS += [("eagle3-mla", "tree")]
EXECUTORS = ["eager", "graph", "breakable"]


def model_of(*, heads=128, latent=512, rope=64, dtype=torch.bfloat16, page_size=16):
    return latent_model(
        heads=heads, latent=latent, rope=rope, page_size=page_size, dtype=dtype, device="cuda"
    )


V3, LITE = model_of(), model_of(heads=16)
SMALL = model_of(heads=4, latent=32, rope=16, dtype=torch.float32, page_size=3)
ODD = model_of(heads=20, latent=96, rope=32)


def backend_of(model):
    users = [HeadShape(heads=model.heads, head_dim=model.latent, is_latent=True)]
    return TritonAttention(page_size=model.page_size, users=users)


def like(dtype=torch.bfloat16):
    return torch.empty(0, dtype=dtype, device="cuda")


# --- attention


@pytest.mark.parametrize("model", [V3, LITE, SMALL, ODD], ids=["v3", "lite", "small", "odd"])
@pytest.mark.parametrize("nodes", [1, 6, 16])
def test_decode_rows_are_close_to_the_reference(model, nodes):
    case = make_case(model, lengths=[0, 1, 31, 255, 513, 1000, 3000], nodes=nodes, seed=nodes)
    assert_like_reference(backend_of(model), case)


@pytest.mark.parametrize("model", [V3, LITE, SMALL, ODD], ids=["v3", "lite", "small", "odd"])
def test_a_token_has_the_same_bits_in_a_chunk_and_as_a_decode_row(model):
    # Splits of 512 or 1024 latents; from the 16th on they are twice as long.
    positions = [0, 15, 63, 64, 511, 512, 1023, 1024, 1500, 2048, 2999]
    case = make_case(model, lengths=[], chunks={1: (0, 3000)}, seed=3)
    assert_chunk_equals_decodes(backend_of(model), case, positions)
    assert_chunk_equals_decodes(backend_of(model), case, [2999])  # splits run in parallel


@pytest.mark.parametrize("model", [V3, LITE, SMALL, ODD], ids=["v3", "lite", "small", "odd"])
def test_trees_and_chunks_run_together(model):
    chunks = {3: (70, 300), 4: (0, 5), 5: (511, 65)}
    case = make_case(model, lengths=[37, 600], nodes=5, chunks=chunks)
    assert_like_reference(backend_of(model), case)


@pytest.mark.parametrize("model", [V3, LITE, SMALL, ODD], ids=["v3", "lite", "small", "odd"])
@pytest.mark.parametrize("rows", [3, 40])  # splits are merged by a second launch, or by programs
@pytest.mark.parametrize("is_chain", [False, True])
def test_ragged_rows_have_the_bits_of_rows_with_all_nodes(model, rows, is_chain):
    lengths = [(137 * row) % 2900 for row in range(rows)]
    ancestors = {"ancestors": chain_ancestors(rows, 6)} if is_chain else {}
    case = make_case(
        model, lengths=lengths, nodes=6, chunks={rows + 1: (3, 9)}, seed=5, **ancestors
    )
    case = as_chain(case) if is_chain else case
    absent = [row % 6 for row in range(rows)]
    assert_ragged_like_whole(backend_of(model), case, absent=absent, padding=rows // 2)


@pytest.mark.parametrize("page_size", [1, 64, 256])
def test_any_page_size_is_close_to_the_reference(page_size):
    model = model_of(page_size=page_size)
    case = make_case(model, lengths=[37, 600], nodes=3, chunks={3: (70, 30)})
    assert_like_reference(backend_of(model), case)


@pytest.mark.parametrize("model", [V3, LITE], ids=["v3", "lite"])
def test_draft_levels_and_long_texts_are_close_to_the_reference(model):
    ancestors = level_ancestors(random.Random(1), rows=3, topk=4, step=5)
    case = make_case(model, lengths=[30, 61, 700], nodes=4, reach=20, ancestors=ancestors)
    assert_like_reference(backend_of(model), case)
    assert_like_reference(backend_of(model), make_case(model, lengths=[40_000, 9], nodes=1))


@pytest.mark.parametrize("model", [V3, LITE, SMALL, ODD], ids=["v3", "lite", "small", "odd"])
@pytest.mark.parametrize("lengths", [[28, 1050], [0, 63, 64, 250, 700]])
def test_a_node_of_a_tree_has_the_bits_of_a_decode_of_its_path(model, lengths):
    case = make_case(model, lengths=lengths, nodes=7, seed=4)
    assert_nodes_equal_decodes(backend_of(model), case)


@pytest.mark.parametrize("model", [V3, LITE], ids=["v3", "lite"])
def test_a_chain_has_the_bits_of_a_decode_in_both_kernels(model):
    case = make_case(model, lengths=[250, 90], nodes=6, ancestors=chain_ancestors(2, 6), seed=8)
    backend = backend_of(model)
    assert torch.equal(run(backend, case), run(backend, as_chain(case)))
    assert_nodes_equal_decodes(backend, as_chain(case))


@pytest.mark.parametrize("model", [V3, LITE], ids=["v3", "lite"])
@pytest.mark.parametrize("nodes", [1, 3])
def test_a_row_has_the_same_bits_alone_and_among_90(model, nodes):
    """Among 90 rows, a program reads a whole text; alone, in splits."""
    rng = random.Random(9)
    lengths = [rng.randrange(2600) for _ in range(90)]
    case = make_case(model, lengths=lengths, nodes=nodes, seed=6)
    out = run(backend_of(model), case)
    for row in range(0, 90, 17):
        alone = run(backend_of(model), row_alone(case, row), largest=case.shape)
        assert torch.equal(out[row * nodes : (row + 1) * nodes], alone)


@pytest.mark.parametrize("model", [V3, LITE, SMALL], ids=["v3", "lite", "small"])
def test_programs_that_read_more_splits_have_the_bits_of_those_that_read_one(model, monkeypatch):
    case = make_case(model, lengths=[5, 511, 512, 9000, 20_000], nodes=2, seed=11)
    outs = []
    for level in (0, 1, 3, -1):  # one split, 2, 8, and all that there are

        def choose(keys, split, *, rows, tiles, room, level=level):
            del rows, tiles
            return ways_to_slice(keys, split, room=room)[level]

        monkeypatch.setattr(kernel, "choose_slices", choose)
        outs.append(run(backend_of(model), case))
        monkeypatch.undo()
    for out in outs[1:]:
        assert torch.equal(out, outs[0])


@pytest.mark.parametrize("model", [V3, LITE, SMALL], ids=["v3", "lite", "small"])
def test_a_cut_prompt_has_the_bits_of_the_whole_one(model):
    case = make_case(model, lengths=[], chunks={1: (0, 400)}, seed=7)
    assert_chunks_equal_whole(backend_of(model), case, cuts=[1, 64, 199, 320])


def test_a_captured_step_follows_new_lengths():
    case = make_case(V3, lengths=[1300, 40], nodes=5, chunks={3: (10, 70)}, seed=10)
    backend, arena = backend_of(V3), Arena(torch.device("cuda"))
    backend.reserve(arena, case.shape)
    plan = backend.bind(arena, case.shape)
    run(backend, case)  # compiles before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        backend.fill(plan, case.scope)
        out = backend.run_latent(case.query, case.layer, plan, SCALE, V3.latent)
    for lengths in ([7, 1299], [512, 0]):
        case.scope.decode.lengths.copy_(torch.tensor(lengths))
        arena.poison()
        graph.replay()
        assert torch.equal(out, run(backend, case))


# --- the other kernels of latent attention


@pytest.mark.parametrize(("latent", "rope"), [(512, 64), (96, 32)])
def test_latents_are_normalised_rotated_and_stored(latent, rope):
    for num_query in (1, 77):
        check_stored(num_query, latent, rope, like(), atol=2e-2)


@pytest.mark.parametrize("heads", [16, 128])
def test_queries_are_rotated_beside_the_place_of_their_latent_part(heads):
    check_rotated(33, heads, like(), atol=2e-2)


@pytest.mark.parametrize("sizes", [(128, 512), (512, 128), (96, 40)])
@pytest.mark.parametrize("num_query", [1, 30, 64, 300])
def test_every_head_has_a_weight_of_its_own(num_query, sizes):
    check_head_linear(num_query, 16, sizes, like(), atol=1e-2)


@pytest.mark.parametrize("sizes", [(128, 512), (512, 128)])
def test_the_bits_of_a_head_do_not_depend_on_the_other_tokens(sizes):
    x = torch.randn(300, 8, sizes[0], device="cuda").bfloat16()
    weights = torch.randn(8, *sizes, device="cuda").bfloat16()
    whole = torch.empty(300, 8, sizes[1], device="cuda", dtype=torch.bfloat16)
    head_linear_triton(x, weights, whole)
    for count in (1, 17, 40, 64, 65, 200):
        part = torch.empty_like(whole[:count])
        head_linear_triton(x[:count], weights, part)
        assert torch.equal(part, whole[:count]), count


# --- the engine


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    torch.backends.cuda.matmul.allow_tf32 = False
    return make_models(tmp_path_factory.mktemp("models"), "cuda", "deepseek-v3")


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("sampling", [*SAMPLINGS, MIXED])
@pytest.mark.parametrize(("drafter", "tree"), DRAFTS)
def test_tokens_are_those_of_the_reference_decoder(models, drafter, tree, sampling, executor):
    shape = Shape(device="cuda", pad=4, depth=1, step_tokens=90, executor=executor)
    assert not mismatches(models, Case(shape, False, sampling, drafter, tree, "deepseek-v3"))
    cached = Case(replace(shape, pad=1, page_size=16), True, sampling, drafter, tree, "deepseek-v3")
    assert not mismatches(models, cached)


@pytest.mark.parametrize(("drafter", "tree"), DRAFTS)
def test_executors_agree_to_the_last_bit_at_equal_shape(models, drafter, tree):
    outputs = {}
    for executor in EXECUTORS:
        shape = Shape(device="cuda", pad=4, depth=1, step_tokens=90, executor=executor)
        answers = run_case(models, Case(shape, False, "sampled", drafter, tree))
        outputs[executor] = {name: (one.tokens, one.logprobs) for name, one in answers.items()}
    assert outputs["graph"] == outputs["eager"]
    assert outputs["breakable"] == outputs["eager"]


@pytest.mark.parametrize("name", ["deepseek-v2-lite", "deepseek-v3"])
def test_a_layer_at_real_sizes_stays_finite(name):
    body = find_body(name, layers=1)
    model = dummy_decoder(body.config, dtype="bfloat16", device=torch.device("cuda"))
    from support.engines import engine_of, make_submission, run_all

    shape = Shape(device="cuda", page_size=16, step_tokens=300, max_context=600, executor="graph")
    draw = random.Random(0)
    prompts = [[draw.randrange(4096) for _ in range(length)] for length in (1, 40, 200)]
    asked = [
        make_submission(f"r{i}", tokens, SAMPLINGS["greedy"], max_tokens=20)
        for i, tokens in enumerate(prompts)
    ]
    outputs = run_all(engine_of(model, shape), asked)
    for entry in outputs.values():
        assert len(entry.tokens) == 20
        assert all(-20.0 < logprob <= 0.0 for logprob in entry.logprobs)
    del model
    torch.cuda.empty_cache()
