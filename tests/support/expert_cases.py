"""Cases of the kernels for mixtures of experts that hold on any device."""

import torch

from outrider.ops.moe.routing import Routing, select_experts, without_padding
from outrider.ops.moe.routing_config import ExpertGroups, RoutingConfig

PAGE_SIZE = 4
ROUTINGS = {
    "mixtral": RoutingConfig(top_k=2, score="softmax", is_normed=True),
    "qwen3": RoutingConfig(top_k=3, score="softmax", is_normed=False),
    "deepseek-v3": RoutingConfig(top_k=4, score="sigmoid", is_normed=True, scale=2.5),
    "deepseek-v4": RoutingConfig(top_k=5, score="sqrtsoftplus", is_normed=True, scale=1.5),
}
SHAPES = [  # tokens, experts, top_k, hidden, intermediate
    (1, 8, 2, 32, 48),
    (5, 6, 3, 64, 20),
    (33, 7, 2, 40, 36),
    (70, 3, 1, 32, 32),
]
GROUPED_ROUTINGS = {  # for a power of two of experts
    "deepseek-v2": RoutingConfig(
        top_k=3,
        score="softmax",
        is_normed=False,
        scale=16.0,
        groups=ExpertGroups(num=4, num_selected=2, num_scored=1),
    ),
    "deepseek-v3": RoutingConfig(
        top_k=4,
        score="sigmoid",
        is_normed=True,
        scale=2.5,
        groups=ExpertGroups(num=8, num_selected=4, num_scored=2),
    ),
}


def slots_of(num_tokens, *, device="cpu", padded=()):
    """The slots of query tokens; padded ones lie on page 0."""
    slots = torch.arange(num_tokens) + PAGE_SIZE
    slots[list(padded)] = 1
    return slots.to(device)


def logits_of(num_tokens, num_experts, *, device="cpu", dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_tokens, num_experts, generator=generator).to(device, dtype)


def mixture_of(tokens, experts, hidden, intermediate, *, device="cpu", dtype=torch.float32, seed=0):
    """x, gate and up, down, and a residual; drawn on their device, as some are large."""
    generator = torch.Generator(device).manual_seed(seed)

    def draw(*shape):
        return torch.empty(shape, dtype=dtype, device=device).normal_(generator=generator)

    gate_up = draw(experts, 2 * intermediate, hidden).mul_(hidden**-0.5)
    down = draw(experts, hidden, intermediate).mul_(intermediate**-0.5)
    return draw(tokens, hidden), gate_up, down, draw(tokens, hidden)


def routing_of(tokens, experts, top_k, *, device="cpu", padded=(), seed=0):
    """Experts and weights in the types of the kernels."""
    config = RoutingConfig(top_k=top_k, score="softmax", is_normed=True)
    routing = select_experts(logits_of(tokens, experts, seed=seed), config, torch.empty(0))
    slots = slots_of(tokens, padded=padded)
    routing = without_padding(routing, slots, page_size=PAGE_SIZE, num_experts=experts)
    return routing.experts.int().to(device), routing.weights.to(device)


def expected_sum(x, experts, weights, gate_up, down, residual):
    """The reference in float64."""
    routing = Routing(experts=experts.long(), weights=weights.double())
    return residual.double() + expert_by_expert(x.double(), routing, gate_up, down)


def expert_by_expert(x, routing, gate_up, down):
    """The outputs of every expert for the tokens routed to it, weighted and summed."""
    total = torch.zeros_like(x)
    for expert in range(gate_up.shape[0]):
        tokens, places = torch.where(routing.experts == expert)
        gate, up = (x[tokens] @ gate_up[expert].T.to(x.dtype)).chunk(2, dim=-1)
        output = (torch.nn.functional.silu(gate) * up) @ down[expert].T.to(x.dtype)
        total.index_add_(0, tokens, output * routing.weights[tokens, places, None])
    return total
