"""Mixtures of experts, compiled: near float64, with bits that ignore the other rows."""

import pytest
import torch
from support.engines import Shape, engine_of, make_submission, run_all
from support.expert_cases import (
    GROUPED_ROUTINGS,
    PAGE_SIZE,
    ROUTINGS,
    SHAPES,
    expected_sum,
    logits_of,
    mixture_of,
    routing_of,
    slots_of,
)
from support.matrix import PROMPTS, SAMPLINGS, TREES
from support.reference import decode
from support.tiny import save_tiny

from outrider.models.decoder_loader import load_decoder
from outrider.models.standalone_draft import StandaloneDraft
from outrider.ops.moe.routing import route, route_reference, select_experts
from outrider.runtime.draft_kinds import ModelDraft, NoDraft

pytest.importorskip("triton")
from outrider.ops.moe import routing_triton as kernels
from outrider.ops.moe.experts_triton import add_experts_

REAL = [  # tokens, experts, top_k, hidden, intermediate
    (1, 8, 2, 4096, 14336),
    (9, 8, 2, 4096, 14336),
    (1, 128, 8, 2048, 768),
    (64, 128, 8, 2048, 768),
    (700, 128, 8, 2048, 768),
    (2100, 64, 6, 2048, 1408),
]


@pytest.mark.parametrize("num_experts", [8, 11, 128, 256])
@pytest.mark.parametrize("config", ROUTINGS.values(), ids=ROUTINGS)
def test_the_experts_of_a_token_are_those_of_the_reference(config, num_experts):
    logits = logits_of(300, num_experts)
    bias = torch.empty(0) if config.score == "softmax" else logits_of(1, num_experts, seed=1)[0]
    slots = slots_of(300, padded=[7])
    right = route_reference(logits, config, bias, slots, page_size=PAGE_SIZE)
    ours = route(logits.cuda(), config, bias.cuda(), slots.cuda(), page_size=PAGE_SIZE)
    assert torch.equal(ours.experts.cpu().long(), right.experts)
    torch.testing.assert_close(ours.weights.cpu(), right.weights)


@pytest.mark.parametrize("num_experts", [64, 256])
@pytest.mark.parametrize("config", GROUPED_ROUTINGS.values(), ids=GROUPED_ROUTINGS)
def test_tokens_are_routed_to_their_best_groups_only(config, num_experts):
    logits, bias = logits_of(300, num_experts), logits_of(1, num_experts, seed=1)[0]
    right = select_experts(logits, config, bias)
    slots = slots_of(300, device="cuda")
    ours = route(logits.cuda(), config, bias.cuda(), slots, page_size=PAGE_SIZE)
    assert torch.equal(ours.experts.cpu().long(), right.experts)
    torch.testing.assert_close(ours.weights.cpu(), right.weights)


@pytest.mark.parametrize("num_tokens", [1, 64, 129, 5000])
def test_blocks_hold_every_pair_in_order(num_tokens):
    experts, _ = routing_of(num_tokens, 128, 8, device="cuda", padded=[0])
    blocks = kernels.align_blocks(experts, 128, 16)
    owners, rows = blocks.owners.cpu(), blocks.rows.cpu()
    selected = experts.flatten().cpu()
    for expert in range(128):
        pairs = rows[owners == expert].flatten()
        right = torch.where(selected == expert)[0]
        assert torch.equal(pairs[pairs < selected.numel()].long(), right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [*SHAPES, *REAL])
def test_a_mixture_is_as_good_as_its_type_allows(shape, dtype):
    tokens, num_experts, top_k, hidden, intermediate = shape
    sizes = tokens, num_experts, hidden, intermediate
    x, gate_up, down, residual = mixture_of(*sizes, device="cuda", dtype=dtype)
    padded = [0, tokens - 1] if tokens > 4 else []
    experts, weights = routing_of(tokens, num_experts, top_k, device="cuda", padded=padded)
    right = expected_sum(x, experts, weights, gate_up, down, residual)
    out = residual.clone()
    add_experts_(x, experts, weights, gate_up, down, out)
    error = (out.double() - right).norm() / right.norm()
    assert error <= max(torch.finfo(dtype).eps, 2e-6)
    assert torch.equal(out[padded], residual[padded])


@pytest.mark.parametrize("sizes", [(128, 8, 2048, 768), (8, 2, 4096, 14336)], ids=str)
def test_the_bits_of_a_row_depend_on_nothing_but_the_row(sizes):
    num_experts, top_k, hidden, intermediate = sizes
    x, gate_up, down, residual = mixture_of(
        2500, num_experts, hidden, intermediate, device="cuda", dtype=torch.bfloat16
    )
    experts, weights = routing_of(2500, num_experts, top_k, device="cuda")

    def first(count):
        out = residual[:count].clone()
        add_experts_(x[:count], experts[:count], weights[:count], gate_up, down, out)
        return out

    whole = first(2500)
    for count in (1, 2, 17, 64, 130, 300, 600, 1100):
        assert torch.equal(first(count), whole[:count]), count


def test_a_captured_mixture_follows_its_inputs():
    x, gate_up, down, residual = mixture_of(16, 128, 256, 64, device="cuda", dtype=torch.bfloat16)
    logits, config = logits_of(16, 128, device="cuda"), ROUTINGS["qwen3"]
    slots, no_bias = slots_of(16, device="cuda"), torch.empty(0, device="cuda")
    out = residual.clone()

    def program():
        routing = route(logits, config, no_bias, slots, page_size=PAGE_SIZE)
        add_experts_(x, routing.experts, routing.weights, gate_up, down, out)

    program()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        program()
    for seed in (1, 2):
        logits.copy_(logits_of(16, 128, seed=seed))
        slots[seed] = PAGE_SIZE - 1
        out.copy_(residual)
        program()
        right = out.clone()
        out.copy_(residual)
        graph.replay()
        assert torch.equal(out, right)
        assert torch.equal(out[seed], residual[seed])


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory):
    torch.backends.cuda.matmul.allow_tf32 = False
    folder = tmp_path_factory.mktemp("mixtral")
    theirs = save_tiny("mixtral", folder)
    return theirs, load_decoder(folder, dtype="float32", device=torch.device("cuda"))


@pytest.mark.parametrize("executor", ["eager", "graph", "breakable"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_drafts_of_a_twin_change_no_token_of_a_mixture(mixtral, sampling, executor):
    theirs, target = mixtral
    twin = StandaloneDraft(target, target_vocab=target.config.vocab_size)
    shape = Shape(device="cuda", pad=4, executor=executor, depth=1, step_tokens=90)
    submissions = [
        make_submission(f"r{i}", tokens, SAMPLINGS[sampling], max_tokens=9)
        for i, tokens in enumerate(PROMPTS)
    ]
    for draft in (NoDraft(), ModelDraft(model=twin, budget=TREES["tree"])):
        outputs = run_all(engine_of(target, shape, draft), submissions)
        for i, tokens in enumerate(PROMPTS):
            right = decode(theirs, tokens, SAMPLINGS[sampling], max_tokens=9)
            assert outputs[f"r{i}"].tokens == right.tokens
