"""Recurrent models compiled: their kernels at real sizes, and the engine eager and captured."""

import pytest
import torch
from support.engines import engine_of, run_all
from support.recurrent import FAMILIES, saved_recurrent
from support.recurrent_module import save_with_module
from support.row_matrix import CHAIN, LONGEST, PLAIN, PROMPTS, Case, ask_all, mismatches, shape_of

from outrider.models.mtp.module_loader import load_modules
from outrider.models.target import load_target
from outrider.runtime.draft_kinds import ModelDraft
from outrider.wire.draft_budget import Budget

pytest.importorskip("triton")
from support.delta_kernels import DeltaCase, check_causal_conv, check_gated_norm, check_recurrence

from outrider.ops.recurrent.recurrent_rows import NEW_TEXT

CUDA = torch.device("cuda")
TYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(scope="module", params=list(FAMILIES))
def made(request, tmp_path_factory):
    """The model as transformers runs it and as we load it."""
    torch.backends.cuda.matmul.allow_tf32 = False
    folder = tmp_path_factory.mktemp("recurrent")
    theirs = saved_recurrent(folder, request.param)
    return theirs, load_target(folder, dtype="float32", device=CUDA)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "case",
    [
        DeltaCase(16, 32, 128, 128, accepted_counts=(0, 4, NEW_TEXT, 1), nodes=4, chunks=(37, 5)),
        DeltaCase(16, 32, 128, 128, accepted_counts=(1,) * 33, nodes=1, chunks=()),
        DeltaCase(
            16, 64, 128, 128, accepted_counts=(NEW_TEXT, 8), nodes=2, chunks=(300, 1), most=8
        ),
        DeltaCase(
            16, 32, 128, 128, accepted_counts=(NEW_TEXT, 3), nodes=2, chunks=(300,), is_fixed=True
        ),
        DeltaCase(16, 32, 128, 128, accepted_counts=(NEW_TEXT,), chunks=(517,), repeats=True),
        DeltaCase(2, 6, 12, 10),
        DeltaCase(2, 4, 12, 10, accepted_counts=(2, NEW_TEXT, 3), nodes=2, chunks=(7, 37)),
    ],
    ids=str,
)
def test_rows_read_their_states_which_take_in_what_is_committed(case, dtype):
    check_recurrence(case, ("cuda", dtype))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("num", "width", "window"), [(1, 8192, 4), (700, 8192, 4), (7, 37, 4)])
def test_the_convolution_reads_ring_buffers_and_the_step(num, width, window, dtype):
    check_causal_conv(num, width, window, ("cuda", dtype))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("num", "heads", "dim"), [(1, 32, 128), (700, 32, 128), (3, 5, 12)])
def test_heads_are_normalised_and_gated(num, heads, dim, dtype):
    check_gated_norm(num, heads, dim, ("cuda", dtype))


@pytest.mark.parametrize("executor", ["eager", "graph", "breakable"])
@pytest.mark.parametrize("draft", [PLAIN, CHAIN, LONGEST], ids=["plain", "chain", "longest"])
@pytest.mark.parametrize("sampling", ["greedy", "sampled", "warped"])
def test_the_tokens_are_those_of_the_reference_decoder(made, sampling, draft, executor):
    theirs, target = made
    shape = shape_of(draft, chunk=7, executor=executor, depth=1, pad=4, device="cuda")
    assert not mismatches(theirs, target, Case(sampling, draft, shape))


def test_a_preempted_request_is_computed_again_to_the_same_tokens(made):
    theirs, target = made
    shape = shape_of(CHAIN, chunk=30, kv_tokens=96, executor="breakable", depth=1, device="cuda")
    assert not mismatches(theirs, target, Case("sampled", CHAIN, shape))


@pytest.mark.parametrize("executor", ["eager", "breakable"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_module_inside_changes_no_token(tmp_path, family, executor):
    module = save_with_module(tmp_path, family)
    target = load_target(tmp_path, dtype="float32", device=CUDA)
    modules = load_modules(tmp_path, target=target, most=1, dtype="float32")
    draft = ModelDraft(model=modules, budget=Budget(steps=3, topk=1, nodes=4))
    shape = shape_of(draft, chunk=7, executor=executor, depth=1, pad=4, device="cuda")
    assert not mismatches(module.theirs, target, Case("sampled", draft, shape))


@pytest.mark.parametrize("family", FAMILIES)
def test_with_fixed_arithmetic_an_answer_has_the_same_bits_drafted_or_not(tmp_path, family):
    """In bfloat16, alone and among others: log-probabilities are equal to the bit."""
    saved_recurrent(tmp_path, family)
    target = load_target(tmp_path, dtype="bfloat16", device=CUDA, arithmetic="fixed")
    said = []
    for draft, num in ((PLAIN, 1), (PLAIN, 4), (CHAIN, 4)):
        shape = shape_of(draft, chunk=30, executor="breakable", device="cuda", arithmetic="fixed")
        outputs = run_all(engine_of(target, shape, draft), ask_all("sampled", PROMPTS[:num]))
        said.append((outputs["r0"].tokens, outputs["r0"].logprobs))
    assert said[0] == said[1] == said[2]
