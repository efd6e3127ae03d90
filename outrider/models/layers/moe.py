"""A mixture of experts: a router asks a few of many small feed-forward parts for every token."""

import math
from typing import Protocol

import torch

from outrider.errors import ConfigError
from outrider.models.expert_config import RoutingConfig
from outrider.models.layers.gated_activation import swiglu
from outrider.models.layers.linear import Linear
from outrider.models.layers.mlp import FeedForward, FeedStep
from outrider.models.layers.router import Routing, route, score, weigh, without_padding

# A library's product of fewer rows sums in another order (MKL on Zen 4: 1, 2 and 3 rows differ).
_BLOCK = 4  # rows; a power of two
_ALIGNMENT_BYTES = 16  # of a row, for the grouped product


class Router(Protocol):
    """Chooses the experts of every query token; padding asks nobody."""

    def __call__(self, x: torch.Tensor, step: FeedStep) -> Routing: ...  # x [n, hidden]


class TopKRouter:
    """Owns the map to the merits of all experts."""

    def __init__(
        self,
        routing: RoutingConfig,
        *,
        gate: Linear,  # [hidden -> experts]
        bias: torch.Tensor,  # [experts] float32, for choosing only; [0] where there is none
    ) -> None:
        self._law = routing
        self._gate = gate
        self._bias = bias

    def __call__(self, x: torch.Tensor, step: FeedStep) -> Routing:
        logits = self._gate(x)[: step.slots.shape[0]]
        return route(logits, self._law, self._bias, step)


class TableRouter:
    """Owns a table of the experts of every token id; the map only says how much each counts."""

    def __init__(
        self,
        routing: RoutingConfig,
        *,
        gate: Linear,  # [hidden -> experts]
        table: torch.Tensor,  # [vocab, top_k] int64
    ) -> None:
        self._law = routing
        self._gate = gate
        self._table = table

    def __call__(self, x: torch.Tensor, step: FeedStep) -> Routing:
        scores = score(self._gate(x)[: step.slots.shape[0]], self._law.score)
        routing = weigh(scores, self._table[step.tokens], self._law)
        return without_padding(routing, step, scores.shape[1])


class Experts(Protocol):
    """Adds to every row of the residual what its experts make of the row of x."""

    def add_(self, x: torch.Tensor, routing: Routing, residual: torch.Tensor) -> None: ...


class GroupedExperts:
    """The portable form: rows sorted by expert, one product per expert that is asked."""

    def __init__(
        self,
        *,
        gate_up: torch.Tensor,  # [experts, 2 * intermediate, hidden] gate, then up
        down: torch.Tensor,  # [experts, hidden, intermediate]
        limit: float = math.inf,  # of gates and what they gate
    ) -> None:
        self._num_experts = gate_up.shape[0]
        self._limit = limit
        self._gate_up = gate_up.transpose(1, 2)
        self._down = down.transpose(1, 2)
        self._multiply = torch.ops.aten._grouped_mm.default

    def add_(self, x: torch.Tensor, routing: Routing, residual: torch.Tensor) -> None:
        (num_tokens, hidden), top_k = x.shape, routing.experts.shape[1]
        asked = routing.experts.flatten()  # [pairs] a pair is a token and one of its experts
        places, ends = place_by_expert(asked, self._num_experts)
        num_places = asked.shape[0] + (_BLOCK - 1) * min(asked.shape[0], self._num_experts + 1)
        pairs = x[:, None].expand(num_tokens, top_k, hidden).reshape(-1, hidden)
        grouped = x.new_zeros(num_places, hidden).index_copy_(0, places, pairs)
        active = swiglu(self._multiply(grouped, self._gate_up, ends), self._limit)
        outputs = self._multiply(active, self._down, ends).index_select(0, places)
        # Nobody computed the rows of padding: they may hold anything.
        outputs.masked_fill_((asked == self._num_experts)[:, None], 0.0)
        shares = outputs.view(num_tokens, top_k, hidden)
        residual.add_(shares.mul_(routing.weights[..., None]).sum(1))  # in the order of the token


def place_by_expert(
    asked: torch.Tensor,  # [pairs] int64 expert of each pair, num_experts for nobody
    num_experts: int,
) -> tuple[torch.Tensor, torch.Tensor]:  # [pairs] int64, [experts] int32
    """Where each pair goes so that experts lie one after another, and where each expert ends.

    Every expert starts at a multiple of the block; pairs of nobody come last.
    """
    counts = torch.bincount(asked, minlength=num_experts + 1)
    padded = (counts + (_BLOCK - 1)).bitwise_and_(-_BLOCK)
    ends = padded.cumsum(0)
    order = asked.argsort(stable=True)
    expert = asked[order]
    rank = torch.arange(asked.shape[0], device=asked.device)
    # In sorted order an expert's pairs start after all pairs before it, and go to its first place.
    shift = (ends - padded) - (counts.cumsum(0) - counts)  # [experts + 1]
    places = torch.empty_like(asked).scatter_(0, order, rank + shift[expert])
    return places, ends[:num_experts].to(torch.int32)


class KernelExperts:
    """The same in our own kernels, on CUDA: blocks of tokens that ask the same expert."""

    def __init__(
        self,
        *,
        gate_up: torch.Tensor,  # [experts, 2 * intermediate, hidden] gate, then up
        down: torch.Tensor,  # [experts, hidden, intermediate]
        limit: float = math.inf,
    ) -> None:
        from outrider.ops.moe.experts_triton import add_experts_  # a CPU installation has no Triton

        self._gate_up = gate_up
        self._down = down
        self._add = add_experts_
        self._limit = limit

    def add_(self, x: torch.Tensor, routing: Routing, residual: torch.Tensor) -> None:
        experts = routing.experts.to(torch.int32)  # they are already, if the kernel chose them
        weights = routing.weights
        self._add(x, experts, weights, self._gate_up, self._down, residual, self._limit)


def make_experts(gate_up: torch.Tensor, down: torch.Tensor, limit: float = math.inf) -> Experts:
    """The form for the device of the weights."""
    for name, weight in {"hidden_size": gate_up, "expert width": down}.items():
        if weight.shape[2] * weight.element_size() % _ALIGNMENT_BYTES:
            raise ConfigError(
                f"the {name} {weight.shape[2]} of a model with experts must be a multiple of "
                f"{_ALIGNMENT_BYTES // weight.element_size()}; use another model"
            )
    kind = KernelExperts if gate_up.is_cuda else GroupedExperts
    return kind(gate_up=gate_up, down=down, limit=limit)


class MoeMlp:
    """The weighted sum of a token's experts, and of parts that every token asks."""

    def __init__(
        self, *, router: Router, experts: Experts, shared: tuple[FeedForward, ...] = ()
    ) -> None:
        self._router = router
        self._experts = experts
        self._shared = shared

    def __call__(
        self,
        x: torch.Tensor,  # [n, hidden] normalised; n is num_query or more
        residual: torch.Tensor,  # [n, hidden]
        step: FeedStep,
    ) -> torch.Tensor:  # [n, hidden]
        num_query = step.slots.shape[0]
        for part in self._shared:
            residual = part(x, residual, step)
        self._experts.add_(x[:num_query], self._router(x, step), residual[:num_query])
        return residual
