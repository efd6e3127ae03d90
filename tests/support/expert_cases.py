"""Cases of the kernels for mixtures of experts that hold on any device."""

import torch

from outrider.models.expert_config import ExpertGroups, RoutingConfig
from outrider.models.layers.mlp import FeedStep
from outrider.models.layers.router import Routing, choose_experts, without_padding

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


def step_of(num_tokens, *, device="cpu", padded=()):
    """A step whose padded query tokens lie on page 0."""
    slots = torch.arange(num_tokens) + PAGE_SIZE
    slots[list(padded)] = 1
    tokens = torch.zeros(num_tokens, dtype=torch.int64)
    return FeedStep(tokens=tokens.to(device), slots=slots.to(device), page_size=PAGE_SIZE)


def logits_of(num_tokens, num_experts, *, device="cpu", dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_tokens, num_experts, generator=generator).to(device, dtype)


def mixture_of(tokens, experts, hidden, intermediate, *, device="cpu", dtype=torch.float32, seed=0):
    """x, gate and up, down, and a residual; drawn where they are needed, as some are large."""
    generator = torch.Generator(device).manual_seed(seed)

    def draw(*shape):
        return torch.empty(shape, dtype=dtype, device=device).normal_(generator=generator)

    gate_up = draw(experts, 2 * intermediate, hidden).mul_(hidden**-0.5)
    down = draw(experts, hidden, intermediate).mul_(intermediate**-0.5)
    return draw(tokens, hidden), gate_up, down, draw(tokens, hidden)


def routing_of(tokens, experts, top_k, *, device="cpu", padded=(), seed=0):
    """Experts and weights as the kernels take them."""
    law = RoutingConfig(top_k=top_k, score="softmax", is_normed=True)
    routing = choose_experts(logits_of(tokens, experts, seed=seed), law, torch.empty(0))
    routing = without_padding(routing, step_of(tokens, padded=padded), experts)
    return routing.experts.int().to(device), routing.weights.to(device)


def expected_sum(x, experts, weights, gate_up, down, residual):
    """The torch law in float64."""
    routing = Routing(experts=experts.long(), weights=weights.double())
    return residual.double() + expert_by_expert(x.double(), routing, gate_up, down)


def expert_by_expert(x, routing, gate_up, down):
    """What every expert makes of the tokens that ask it, weighted and summed."""
    total = torch.zeros_like(x)
    for expert in range(gate_up.shape[0]):
        tokens, places = torch.where(routing.experts == expert)
        gate, up = (x[tokens] @ gate_up[expert].T.to(x.dtype)).chunk(2, dim=-1)
        output = (torch.nn.functional.silu(gate) * up) @ down[expert].T.to(x.dtype)
        total.index_add_(0, tokens, output * routing.weights[tokens, places, None])
    return total
