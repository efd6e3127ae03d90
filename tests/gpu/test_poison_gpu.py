"""On a GPU, too, numbers that are not finite reach only what really reads them."""

import math

import pytest
import torch
from support.attention_cases import Model, as_chain, chain_ancestors, latent_model, make_case
from support.bad_tokens import assert_ends_as_plain_decoding
from support.engines import Shape, engine_of, run_all
from support.model_set import make_models
from support.poison import DRAFTS, PoisoningExecutor, answers
from support.poisoned_attention import assert_blind_to_unused, assert_only_descendants_see
from support.recurrent import FAMILIES, saved_recurrent
from support.row_matrix import CHAIN, PLAIN, PROMPTS, ask_all, shape_of
from support.v4 import saved_v4

from outrider.kv.head_shape import HeadShape
from outrider.kv.triton_attention import TritonAttention
from outrider.models.target import load_target

pytest.importorskip("triton")

from support import bad_kv_cases

TYPES = [torch.bfloat16, torch.float16, torch.float32]


def model_of(kind, dtype):
    where = {"dtype": dtype, "device": "cuda", "page_size": 16}
    if kind == "latents":
        return latent_model(heads=16, latent=512, rope=64, **where)
    return Model(kv_heads=2, group=4, head_dim=128, **where)


def backend_of(model):
    read, is_latent = model.latent or model.head_dim, model.latent > 0
    user = HeadShape(heads=model.heads, head_dim=read, is_latent=is_latent)
    return TritonAttention(page_size=model.page_size, users=[user])


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("nodes", [1, 6])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", ["heads", "latents"])
def test_slots_without_a_token_are_never_summed(kind, dtype, nodes, value):
    model = model_of(kind, dtype)
    chunks = {5: (70, 130), 6: (0, 5)}
    case = make_case(model, lengths=[0, 63, 500, 1500], nodes=nodes, chunks=chunks)
    assert_blind_to_unused(backend_of(model), case, value)


@pytest.mark.parametrize("node", [1, 3])
@pytest.mark.parametrize("is_chain", [True, False])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", ["heads", "latents"])
def test_a_bad_node_reaches_the_nodes_below_it_alone(kind, dtype, is_chain, node):
    model = model_of(kind, dtype)
    own = {"ancestors": chain_ancestors(4, 6)} if is_chain else {}
    case = make_case(model, lengths=[0, 63, 500, 1500], nodes=6, chunks={5: (70, 130)}, **own)
    case = as_chain(case) if is_chain else case
    assert_only_descendants_see(backend_of(model), case, node)


@pytest.mark.parametrize("dtype", TYPES)
def test_bad_keys_and_values_are_stored_as_in_the_reference(dtype):
    like = torch.empty(0, dtype=dtype, device="cuda")
    bad_kv_cases.check_heads(like)
    bad_kv_cases.check_projection(like)
    bad_kv_cases.check_bad_values(like)
    bad_kv_cases.check_latents(like)


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    torch.backends.cuda.matmul.allow_tf32 = False
    return {
        family: make_models(tmp_path_factory.mktemp(family), "cuda", family)
        for family in ("llama", "deepseek-v3")
    }


@pytest.mark.parametrize("executor", ["eager", "graph", "breakable"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("draft", DRAFTS, ids="-".join)
@pytest.mark.parametrize("target", ["llama", "deepseek-v3"])
def test_unused_memory_never_reaches_an_answer(targets, target, draft, value, executor):
    models, shape = targets[target], Shape(device="cuda", executor=executor)
    assert answers(models, draft, shape, value) == answers(models, draft, shape)


@pytest.mark.parametrize("executor", ["eager", "graph", "breakable"])
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("draft", [*DRAFTS, ("twin", "tree")], ids="-".join)
@pytest.mark.parametrize("target", ["llama", "deepseek-v3"])
def test_a_bad_token_ends_its_request_where_plain_decoding_ends_it(
    targets, target, draft, depth, executor
):
    shape = Shape(device="cuda", depth=depth, executor=executor)
    assert_ends_as_plain_decoding(targets[target], draft, shape)


@pytest.fixture(scope="module", params=["v4", *FAMILIES])
def row_target(request, tmp_path_factory):
    """A model whose past lives in rows."""
    folder = tmp_path_factory.mktemp("rows")
    if request.param == "v4":
        saved_v4(folder)
    else:
        saved_recurrent(folder, request.param)
    return load_target(folder, dtype="float32", device=torch.device("cuda"))


@pytest.mark.parametrize("executor", ["eager", "graph", "breakable"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("draft", [CHAIN, PLAIN], ids=["chain", "plain"])
def test_unused_row_state_never_reaches_an_answer(row_target, draft, value, executor):
    how = {"chunk": 7, "pad": 3, "max_rows": 2, "device": "cuda", "executor": executor}
    said = []
    for is_poisoned in (False, True):
        engine = engine_of(row_target, shape_of(draft, **how), draft)
        if is_poisoned:
            PoisoningExecutor(engine, value)
        outputs = run_all(engine, ask_all("sampled", PROMPTS))
        said.append({name: (each.tokens, each.logprobs) for name, each in outputs.items()})
    assert said[0] == said[1]
