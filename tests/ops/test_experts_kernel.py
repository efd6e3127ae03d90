"""The kernels for mixtures, interpreted, compute what their references compute.

tests/gpu compiles them.
"""

import pytest
import torch
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
from support.packed_forms import quantised_of

from outrider.ops.moe.expert_gate import NO_BIASES, ExpertBiases
from outrider.ops.moe.expert_stack import stack_codes
from outrider.ops.moe.experts import group_experts
from outrider.ops.moe.gate_form import ExpertGate
from outrider.ops.moe.routing import Routing, route_reference, select_experts

pytest.importorskip("triton")
from outrider.ops.moe import routing_triton as kernels
from outrider.ops.moe.experts_triton import add_experts_, choose_expert_tile, multiply_grouped


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("num_experts", [8, 11])
@pytest.mark.parametrize("config", ROUTINGS.values(), ids=ROUTINGS)
def test_the_experts_of_a_token_are_those_of_the_reference(config, num_experts, has_bias):
    logits = logits_of(7, num_experts)
    bias = logits_of(1, num_experts, seed=1)[0] if has_bias else torch.empty(0)
    slots = slots_of(7, padded=[2, 6])
    right = route_reference(logits, config, bias, slots, page_size=PAGE_SIZE)
    ours = kernels.route_triton(logits, config, bias, slots, page_size=PAGE_SIZE)
    assert torch.equal(ours.experts.long(), right.experts)
    torch.testing.assert_close(ours.weights, right.weights)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("config", GROUPED_ROUTINGS.values(), ids=GROUPED_ROUTINGS)
def test_tokens_are_routed_to_their_best_groups_only(config, has_bias):
    logits = logits_of(9, 32)
    bias = logits_of(1, 32, seed=1)[0] if has_bias else torch.empty(0)
    right = select_experts(logits, config, bias)
    ours = kernels.route_triton(logits, config, bias, slots_of(9), page_size=PAGE_SIZE)
    assert torch.equal(ours.experts.long(), right.experts)
    torch.testing.assert_close(ours.weights, right.weights)


def test_of_equal_experts_the_first_is_selected():
    logits = torch.tensor([[1.0, 3.0, 3.0, 3.0, 0.0]])
    config, no_bias = ROUTINGS["mixtral"], torch.empty(0)
    routing = kernels.route_triton(logits, config, no_bias, slots_of(1), page_size=PAGE_SIZE)
    assert routing.experts.tolist() == [[1, 2]]
    assert routing.weights.tolist() == [[0.5, 0.5]]


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(
    "span", [16, 1024]
)  # above, a launch before counts the pairs of each expert
@pytest.mark.parametrize(
    ("num_experts", "num_tokens", "block_rows"),
    [(5, 1, 2), (5, 9, 16), (5, 40, 2), (5, 40, 16), (32, 9, 16)],  # padding is one more expert
)
def test_every_pair_stands_once_in_a_block_of_its_expert(
    num_experts, num_tokens, block_rows, span, monkeypatch
):
    monkeypatch.setattr(kernels, "_SPAN", span)
    padded = range(0, num_tokens, 4) if num_tokens > 1 else ()
    experts, _ = routing_of(num_tokens, num_experts, 2, padded=padded)
    blocks = kernels.align_blocks(experts, num_experts, block_rows)
    found = {expert: [] for expert in range(num_experts)}
    for owner, rows in zip(blocks.owners.tolist(), blocks.rows.tolist(), strict=True):
        if owner >= 0:
            assert rows[0] < experts.numel()  # no block is empty
            found[owner] += [pair for pair in rows if pair < experts.numel()]
    selected = experts.flatten().tolist()
    for expert, pairs in found.items():
        assert pairs == [pair for pair, of in enumerate(selected) if of == expert]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_mixture_is_the_weighted_sum_of_the_experts_of_each_token(shape):
    tokens, num_experts, top_k, hidden, intermediate = shape
    x, gate_up, down, residual = mixture_of(tokens, num_experts, hidden, intermediate)
    padded = [0, tokens - 1] if tokens > 4 else []
    experts, weights = routing_of(tokens, num_experts, top_k, padded=padded)
    right = expected_sum(x, experts, weights, gate_up, down, residual)
    out = residual.clone()
    add_experts_(x, experts, weights, gate_up, down, out)
    torch.testing.assert_close(out.double(), right, atol=1e-5, rtol=1e-5)
    assert torch.equal(out[padded], residual[padded])


@pytest.mark.parametrize("style", ["limit", "gpt-oss"])
def test_gates_and_ups_are_clamped_to_the_limit(style):
    x, gate_up, down, residual = mixture_of(9, 4, 32, 16)
    experts, weights = routing_of(9, 4, 2, padded=[3])
    gate, biases = ExpertGate(limit=0.4), NO_BIASES
    if style == "gpt-oss":
        gate = ExpertGate(limit=0.4, alpha=1.702, shift=1.0)
        biases = ExpertBiases(logits_of(4, 32, seed=2), logits_of(4, 32, seed=3))
    limited, free, right = residual.clone(), residual.clone(), residual.clone()
    add_experts_(x, experts, weights, gate_up, down, limited, gate=gate, biases=biases)
    add_experts_(x, experts, weights, gate_up, down, free)
    routing = Routing(experts=experts.long(), weights=weights)
    ours = group_experts(gate_up, down, gate=gate, biases=biases)
    ours.add_(x, routing, right)
    torch.testing.assert_close(limited, right, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(limited, free, atol=1e-2)


CONFIGS = [*ROUTINGS.values(), *GROUPED_ROUTINGS.values()]


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("config", CONFIGS)
def test_a_token_that_is_not_finite_has_valid_experts_of_its_own(config, value):
    logits, slots, no_bias = logits_of(2, 32), slots_of(2), torch.empty(0)
    for route in (kernels.route_triton, route_reference):
        right = route(logits, config, no_bias, slots, page_size=PAGE_SIZE)
        bad = torch.stack([logits[0], torch.full_like(logits[1], value)])
        got = route(bad, config, no_bias, slots, page_size=PAGE_SIZE)
        assert torch.equal(got.experts[0], right.experts[0])
        assert torch.equal(got.weights[0], right.weights[0])
        selected = got.experts[1].tolist()
        assert len(set(selected)) == config.top_k
        assert all(0 <= expert < 32 for expert in selected)


@pytest.mark.slow
def test_a_token_that_is_not_finite_changes_no_other():
    x, gate_up, down, residual = mixture_of(7, 4, 32, 16)
    experts, weights = routing_of(7, 4, 2)
    bad, bad_weights, good = x.clone(), weights.clone(), torch.arange(7) != 3
    bad[3], bad_weights[3] = float("nan"), float("nan")
    for add in (add_experts_, add_by_reference):
        right, got = residual.clone(), residual.clone()
        add(x, experts, weights, gate_up, down, right)
        add(bad, experts, bad_weights, gate_up, down, got)
        assert torch.equal(got[good], right[good])
        assert got[3].isnan().all()


def add_by_reference(x, experts, weights, gate_up, down, out):
    routing = Routing(experts=experts.long(), weights=weights)
    group_experts(gate_up, down).add_(x, routing, out)


def test_an_expert_without_tokens_is_never_read():
    x, gate_up, down, residual = mixture_of(6, 4, 32, 16)
    experts, weights = routing_of(6, 4, 2)
    experts[(experts == 1) | (experts == 3)] = 0
    gate_up[[1, 3]], down[[1, 3]] = float("nan"), float("nan")
    out = residual.clone()
    add_experts_(x, experts, weights, gate_up, down, out)
    assert out.isfinite().all()


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("form", ["fp8 blocks of V4", "MXFP4 of V4", "NVFP4", "GPTQ v2"])
def test_quantised_experts_are_multiplied_as_the_numbers_they_store(form):
    num_experts, hidden, intermediate = 3, 160, 32
    x, _, _, residual = mixture_of(5, num_experts, hidden, intermediate)
    experts, weights = routing_of(5, num_experts, 2)
    sizes = [(num_experts, 2 * intermediate, hidden), (num_experts, hidden, intermediate)]
    codes, numbers = zip(*(_experts_of(form, *size) for size in sizes), strict=True)
    assert [each.shape for each in codes] == sizes
    right = expected_sum(x, experts, weights, *numbers, residual)
    out = residual.clone()
    add_experts_(x, experts, weights, *codes, out)
    torch.testing.assert_close(out.double(), right, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_mxfp4_experts_have_the_gate_and_the_biases_of_gpt_oss():
    num_experts, hidden, intermediate = 3, 160, 96  # whole groups of 32; no multiples of a tile
    x, _, _, residual = mixture_of(5, num_experts, hidden, intermediate)
    experts, weights = routing_of(5, num_experts, 2, padded=[1])
    sizes = [(num_experts, 2 * intermediate, hidden), (num_experts, hidden, intermediate)]
    codes, numbers = zip(*(_experts_of("MXFP4 of V4", *size) for size in sizes), strict=True)
    gate = ExpertGate(limit=7.0, alpha=1.702, shift=1.0)
    biases = ExpertBiases(*(logits_of(num_experts, size[1], seed=4) for size in sizes))
    right, out = residual.clone(), residual.clone()
    ours = group_experts(*numbers, gate=gate, biases=biases)
    ours.add_(x, Routing(experts=experts.long(), weights=weights), right)
    add_experts_(x, experts, weights, *codes, out, gate=gate, biases=biases)
    torch.testing.assert_close(out, right, atol=1e-3, rtol=1e-3)
    assert torch.equal(out[1], residual[1])


def _experts_of(form, num_experts, rows, columns):
    halves = [quantised_of(form, rows // 2, columns, seed=seed) for seed in range(2 * num_experts)]
    values = torch.cat([numbers for _, numbers in halves]).view(num_experts, rows, columns)
    parts = [weight for weight, _ in halves]
    return stack_codes(parts, (num_experts, rows, columns), torch.device("cpu")), values


@pytest.mark.parametrize("is_quantised", [True, False])
def test_a_product_reads_no_inputs_past_those_of_its_weight(is_quantised):
    num_experts, rows, columns = 3, 32, 96  # no whole block of codes; three of the dense depth
    codes, numbers = _experts_of("MXFP4 of V4", num_experts, rows, columns)
    experts, _ = routing_of(5, num_experts, 2)
    num_pairs = experts.numel()
    x = torch.full((num_pairs, 160), float("nan"))[:, :columns]
    x.copy_(logits_of(num_pairs, columns))
    tile = choose_expert_tile(num_pairs, num_experts, x.element_size())
    blocks = kernels.align_blocks(experts, num_experts, tile.rows)
    weight, none = codes if is_quantised else numbers, torch.empty(0)
    out = multiply_grouped(x, weight, blocks, tile, num_pairs=num_pairs, gate=None, bias=none)
    right = torch.einsum("poi,pi->po", numbers[experts.flatten().long()], x)
    torch.testing.assert_close(out, right, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("form", ["GPTQ", "int4 groups, zeros, order"])
def test_experts_whose_inputs_have_orders_of_their_own_are_not_stacked(form):
    parts = [quantised_of(form, 16, 32, seed=seed)[0] for seed in range(2)]
    assert stack_codes(parts, (2, 16, 32), torch.device("cpu")) is None
