"""Mixtures of experts against transformers: selected experts, their outputs, and padding."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.decoders import harness_of, prompt
from support.tiny import save_tiny
from transformers import DeepseekV2Config, DeepseekV3Config, DeepseekV4Config
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE, DeepseekV3TopkRouter
from transformers.models.deepseek_v4.modeling_deepseek_v4 import (
    DeepseekV4HashRouter,
    DeepseekV4TopKRouter,
)

from outrider.errors import ConfigError
from outrider.models.layers.gated_activation import SplitGate
from outrider.models.layers.mlp import FeedStep, Mlp
from outrider.models.layers.moe import MoeMlp
from outrider.models.layers.router import TableRouter, TopKRouter
from outrider.ops.linear.linear import PlainLinear
from outrider.ops.moe.experts import check_alignment, make_experts, place_by_expert
from outrider.ops.moe.routing import Routing, select_experts
from outrider.ops.moe.routing_config import ExpertGroups, RoutingConfig

CPU = torch.device("cpu")
TOLERANCE = 1e-4  # largest difference of any logit, in float32
NO_BIAS = torch.empty(0)
EXPERTS, HIDDEN, WIDE, TOP_K = 6, 16, 12, 2
SOFTMAX = RoutingConfig(top_k=TOP_K, score="softmax", is_normed=True)


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)


def step_of(num_query, *, padded=(), page_size=4):
    """A step whose padding tokens are on page 0."""
    slots = torch.arange(num_query) + page_size
    slots[list(padded)] = 1
    return FeedStep(tokens=torch.arange(num_query), slots=slots, page_size=page_size)


def mixture(routing=SOFTMAX, *, num_experts=EXPERTS, hidden=HIDDEN, wide=WIDE):
    gate_up, down = (
        torch.randn(num_experts, 2 * wide, hidden),
        torch.randn(num_experts, hidden, wide),
    )
    router = TopKRouter(routing, gate=PlainLinear(torch.randn(num_experts, hidden)), bias=NO_BIAS)
    return MoeMlp(router=router, experts=make_experts(gate_up, down)), router, gate_up, down


def one_by_one(x, routing, gate_up, down):
    """The weighted sum of the experts of each token, by the plain formula in float64.

    In float32 the formula would have rounding errors of its own, which differ between CPUs.
    """
    rows, (gate_up, down) = [], (gate_up.double(), down.double())
    for row, experts, weights in zip(x.double(), routing.experts, routing.weights, strict=True):
        total = torch.zeros_like(row)
        for expert, weight in zip(experts.tolist(), weights, strict=True):
            gate, up = (gate_up[expert] @ row).chunk(2)
            total += weight * (down[expert] @ (F.silu(gate) * up))
        rows.append(total)
    return torch.stack(rows).to(x.dtype)


def assert_routes_like(ours, theirs):
    """The same experts with the same weights, in any order."""
    _, weights, experts = theirs
    order, right = ours.experts.argsort(-1), experts.argsort(-1)
    assert torch.equal(ours.experts.gather(1, order), experts.gather(1, right))
    torch.testing.assert_close(ours.weights.gather(1, order), weights.gather(1, right))


# --- routing


def test_groups_bias_and_scale_equal_deepseek_v3():
    config = DeepseekV3Config(
        hidden_size=HIDDEN,
        n_routed_experts=24,
        num_experts_per_tok=4,
        n_group=6,
        topk_group=2,
        routed_scaling_factor=2.5,
        norm_topk_prob=True,
    )
    theirs = DeepseekV3TopkRouter(config)
    torch.nn.init.normal_(theirs.weight)
    theirs.e_score_correction_bias.normal_()
    x = torch.randn(50, HIDDEN)
    routing = RoutingConfig(
        top_k=4,
        score="sigmoid",
        is_normed=True,
        scale=2.5,
        groups=ExpertGroups(num=6, num_selected=2, num_scored=2),
    )
    with torch.no_grad():
        ours = select_experts(F.linear(x, theirs.weight), routing, theirs.e_score_correction_bias)
        assert_routes_like(ours, theirs(x))


def test_groups_scored_by_one_expert_equal_deepseek_v2():
    config = DeepseekV2Config(
        hidden_size=HIDDEN,
        num_attention_heads=2,
        n_routed_experts=24,
        num_experts_per_tok=3,
        n_group=4,
        topk_group=2,
        topk_method="group_limited_greedy",
        routed_scaling_factor=16.0,
    )
    theirs = DeepseekV2TopkRouter(config)
    torch.nn.init.normal_(theirs.weight)
    x = torch.randn(50, HIDDEN)
    groups = ExpertGroups(num=4, num_selected=2, num_scored=1)
    routing = RoutingConfig(top_k=3, score="softmax", is_normed=False, scale=16.0, groups=groups)
    with torch.no_grad():
        assert_routes_like(select_experts(F.linear(x, theirs.weight), routing, NO_BIAS), theirs(x))


V4 = RoutingConfig(top_k=3, score="sqrtsoftplus", is_normed=True, scale=1.5)


def v4_config():
    return DeepseekV4Config(
        hidden_size=HIDDEN,
        num_local_experts=8,
        num_experts_per_tok=3,
        routed_scaling_factor=1.5,
        scoring_func="sqrtsoftplus",
        vocab_size=40,
    )


def test_sqrt_softplus_scores_equal_deepseek_v4():
    theirs = DeepseekV4TopKRouter(v4_config())
    torch.nn.init.normal_(theirs.weight)
    theirs.e_score_correction_bias.normal_()
    x = torch.randn(50, HIDDEN)
    with torch.no_grad():
        ours = select_experts(F.linear(x, theirs.weight), V4, theirs.e_score_correction_bias)
        assert_routes_like(ours, theirs(x))


def test_routing_by_token_id_equals_deepseek_v4():
    theirs = DeepseekV4HashRouter(v4_config())
    torch.nn.init.normal_(theirs.weight)
    theirs.tid2eid.copy_(torch.stack([torch.randperm(8)[:3] for _ in range(40)]))
    x, tokens = torch.randn(20, HIDDEN), torch.randint(40, (20,))
    router = TableRouter(V4, gate=PlainLinear(theirs.weight), table=theirs.tid2eid)
    with torch.no_grad():
        ours = router(x, replace(step_of(20), tokens=tokens))
        assert_routes_like(ours, theirs(x, tokens))


def test_shared_experts_equal_deepseek_v3():
    config = DeepseekV3Config(
        hidden_size=HIDDEN,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        moe_intermediate_size=WIDE,
        n_shared_experts=2,
    )
    theirs = DeepseekV3MoE(config).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    shared = theirs.shared_experts
    routing = RoutingConfig(
        top_k=2, score="sigmoid", is_normed=True, scale=config.routed_scaling_factor
    )
    gate_up = torch.cat([shared.gate_proj.weight, shared.up_proj.weight])
    ours = MoeMlp(
        router=TopKRouter(
            routing, gate=PlainLinear(theirs.gate.weight), bias=theirs.gate.e_score_correction_bias
        ),
        experts=make_experts(theirs.experts.gate_up_proj, theirs.experts.down_proj),
        shared=(
            Mlp(gate=SplitGate(PlainLinear(gate_up)), down=PlainLinear(shared.down_proj.weight)),
        ),
    )
    x, residual = torch.randn(9, HIDDEN), torch.randn(9, HIDDEN)
    with torch.no_grad():
        expected = residual + theirs(x[None])[0]
        torch.testing.assert_close(ours(x, residual.clone(), step_of(9)), expected)


# --- experts


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("is_normed", [True, False])
def test_a_mixture_is_the_weighted_sum_of_the_experts_of_each_token(is_normed, num_tokens):
    routing = replace(SOFTMAX, is_normed=is_normed)
    moe, router, gate_up, down = mixture(routing)
    x, residual = torch.randn(num_tokens, HIDDEN), torch.randn(num_tokens, HIDDEN)
    step = step_of(num_tokens)
    expected = residual + one_by_one(x, router(x, step), gate_up, down)
    # Outputs are about 40, and sums in float32 err by up to 4e-5. TF32 would err by 4e-2.
    torch.testing.assert_close(moe(x, residual.clone(), step), expected, rtol=0, atol=1e-4)


def test_pairs_are_sorted_by_expert_into_separate_blocks():
    selected = torch.tensor([2, 0, 2, 3, 2, 2, 2, 3])  # 3 is padding
    places, ends = place_by_expert(selected, 3, row_group=4)
    assert places.tolist() == [4, 0, 5, 12, 6, 7, 8, 13]
    assert ends.tolist() == [4, 4, 12]
    places, ends = place_by_expert(selected, 3, row_group=1)
    assert places.tolist() == [1, 0, 2, 6, 3, 4, 5, 7]
    assert ends.tolist() == [1, 1, 6]


@pytest.mark.parametrize("wide", [48, 256])
@pytest.mark.parametrize("num_others", [1, 2, 3, 5, 30, 200])
def test_the_bits_of_a_row_do_not_depend_on_the_other_rows(num_others, wide):
    moe, *_ = mixture(hidden=64, wide=wide)
    x, residual = torch.randn(num_others + 4, 64), torch.randn(num_others + 4, 64)
    together = moe(x, residual.clone(), step_of(num_others + 4))
    alone = moe(x[:4], residual[:4].clone(), step_of(4))  # the router needs 4 rows
    assert torch.equal(together[:4], alone)


def test_padding_is_routed_to_no_expert_and_keeps_its_residual():
    moe, router, gate_up, down = mixture()
    x, residual = torch.randn(9, HIDDEN), torch.randn(9, HIDDEN)
    padded = [0, 3, 8]
    step = step_of(9, padded=padded)
    routing = router(x, step)
    assert (routing.experts[padded] == EXPERTS).all()
    selected = set(routing.experts.flatten().tolist()) - {EXPERTS}
    # An expert that only padding would be routed to is never read.
    unused = [expert for expert in range(EXPERTS) if expert not in selected]
    real = [row for row in range(9) if row not in padded]
    alone = moe(x[real], residual[real], step_of(len(real)))
    gate_up[unused], down[unused] = float("nan"), float("nan")
    moe = MoeMlp(router=router, experts=make_experts(gate_up, down))
    out = moe(x, residual.clone(), step)
    assert torch.equal(out[padded], residual[padded])
    torch.testing.assert_close(out[real], alone)


def test_a_step_of_padding_only_changes_nothing():
    moe, *_ = mixture()
    x, residual = torch.randn(5, HIDDEN), torch.randn(5, HIDDEN)
    assert torch.equal(moe(x, residual.clone(), step_of(5, padded=range(5))), residual)


def test_rows_after_the_query_tokens_are_not_changed():
    moe, *_ = mixture()
    x, residual = torch.randn(4, HIDDEN), torch.randn(4, HIDDEN)
    out = moe(x, residual.clone(), step_of(2))
    assert torch.equal(out[2:], residual[2:])
    torch.testing.assert_close(out[:2], moe(x[:2], residual[:2].clone(), step_of(2)))


def test_experts_of_odd_widths_are_refused_where_compiled_loops_do_not_read_them():
    gate_up, down = torch.randn(2, 6, 8), torch.randn(2, 8, 3)
    with pytest.raises(ConfigError, match=r"expert width 3 .* multiple of 4"):
        check_alignment(gate_up, down)
    x, out = torch.randn(5, 8), torch.zeros(5, 8)
    routing = Routing(experts=torch.randint(2, (5, 1)), weights=torch.rand(5, 1))
    make_experts(gate_up, down).add_(x, routing, out)
    torch.testing.assert_close(out, one_by_one(x, routing, gate_up, down))


def test_half_precision_experts_are_close_to_float32(tmp_path):
    save_tiny("mixtral", tmp_path)
    _, router, gate_up, down = mixture(wide=24)
    x, out = torch.randn(9, HIDDEN), torch.zeros(9, HIDDEN)
    routing = router(x, step_of(9))
    half = make_experts(gate_up.bfloat16(), down.bfloat16())
    half.add_(x, routing, out)
    exact = one_by_one(x, routing, gate_up, down)
    assert 0 < (out - exact).norm() <= 0.02 * exact.norm()
    harness_of(tmp_path, "bfloat16").run({}, {1: (0, prompt(9))})
