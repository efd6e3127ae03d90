"""Cases of the kernels for mixtures of experts that hold on any device."""

import torch

from outrider.models.experts import RoutingLaw
from outrider.models.layers.mlp import FeedStep
from outrider.models.layers.routing import Routing, choose, without_padding

PAGE_SIZE = 4
LAWS = {
    "mixtral": RoutingLaw(top_k=2, score="softmax", is_normed=True),
    "qwen3": RoutingLaw(top_k=3, score="softmax", is_normed=False),
    "deepseek-v3": RoutingLaw(top_k=4, score="sigmoid", is_normed=True, scale=2.5),
    "deepseek-v4": RoutingLaw(top_k=5, score="sqrtsoftplus", is_normed=True, scale=1.5),
}
SHAPES = [  # tokens, experts, top_k, hidden, intermediate
    (1, 8, 2, 32, 48),
    (5, 6, 3, 64, 20),
    (33, 7, 2, 40, 36),
    (70, 3, 1, 32, 32),
]


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
    """x, gate and up, down, and a residual."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, hidden, generator=generator)
    gate_up = torch.randn(experts, 2 * intermediate, hidden, generator=generator) * hidden**-0.5
    down = torch.randn(experts, hidden, intermediate, generator=generator) * intermediate**-0.5
    residual = torch.randn(tokens, hidden, generator=generator)
    return tuple(each.to(device, dtype) for each in (x, gate_up, down, residual))


def routing_of(tokens, experts, top_k, *, device="cpu", padded=(), seed=0):
    """Experts and weights as the kernels take them."""
    law = RoutingLaw(top_k=top_k, score="softmax", is_normed=True)
    routing = choose(logits_of(tokens, experts, seed=seed), law, torch.empty(0))
    routing = without_padding(routing, step_of(tokens, padded=padded), experts)
    return routing.experts.int().to(device), routing.weights.to(device)


def expected_sum(x, experts, weights, gate_up, down, residual):
    """The torch law in float64 on the CPU."""
    exact = [each.double().cpu() for each in (x, gate_up, down, residual)]
    x, gate_up, down, residual = exact
    routing = Routing(experts=experts.long().cpu(), weights=weights.double().cpu())
    return residual + expert_by_expert(x, routing, gate_up, down)


def expert_by_expert(x, routing, gate_up, down):
    """What every expert makes of the tokens that ask it, weighted and summed."""
    total = torch.zeros_like(x)
    for expert in range(gate_up.shape[0]):
        tokens, places = torch.where(routing.experts == expert)
        gate, up = (x[tokens] @ gate_up[expert].T).chunk(2, dim=-1)
        output = (torch.nn.functional.silu(gate) * up) @ down[expert].T
        total.index_add_(0, tokens, output * routing.weights[tokens, places, None])
    return total
