"""Which experts a token is routed to, and the weight of each: a pure function of its logits."""

from dataclasses import dataclass

import torch

from outrider.ops.fixed_activations import sigmoid, softplus
from outrider.ops.moe.routing_config import ExpertGroups, RoutingConfig, Score

_TINY = 1e-20  # sigmoid scores may all underflow; a softmax never does


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """The experts of every token. Padding is routed to expert `num_experts`, which is not there."""

    experts: torch.Tensor  # [n, top_k] int64, or int32 on CUDA
    weights: torch.Tensor  # [n, top_k] float32


def route(
    logits: torch.Tensor,  # [n, experts] unit stride along experts
    config: RoutingConfig,
    bias: torch.Tensor,  # [experts] float32, for selection only; [0] where there is none
    slots: torch.Tensor,  # [n] int64; those below page_size are on page 0: padding
    *,
    page_size: int,
) -> Routing:
    """The best experts of every query token, best first; padding is routed to none."""
    if logits.is_cuda and _fits_kernel(logits.shape[1], config.groups):
        from outrider.ops.moe.routing_triton import route_triton  # a CPU has no Triton

        return route_triton(logits, config, bias, slots, page_size=page_size)
    return route_reference(logits, config, bias, slots, page_size=page_size)


def route_reference(
    logits: torch.Tensor,
    config: RoutingConfig,
    bias: torch.Tensor,
    slots: torch.Tensor,
    *,
    page_size: int,
) -> Routing:
    routing = select_experts(logits, config, bias)
    return without_padding(routing, slots, page_size=page_size, num_experts=logits.shape[1])


def _fits_kernel(num_experts: int, groups: ExpertGroups) -> bool:
    """The kernel reshapes experts into groups, so groups need a power of two of experts."""
    return groups.num == 1 or num_experts.bit_count() == 1


def select_experts(
    logits: torch.Tensor,  # [n, experts]
    config: RoutingConfig,
    bias: torch.Tensor,  # [experts] float32, for selection only; [0] where there is none
) -> Routing:
    """The best experts of every token, best first."""
    if (
        config.score == "softmax"
        and config.is_normed
        and config.groups.num == 1
        and not bias.numel()
    ):
        # The share of the other experts cancels out: a softmax over the selected ones is the same.
        best, experts = logits.float().topk(config.top_k, dim=-1)
        weights = best.softmax(-1)
        return Routing(
            experts=experts, weights=weights if config.scale == 1 else weights * config.scale
        )
    scores = score_experts(logits, config.score)
    selection_scores = scores + bias if bias.numel() else scores
    if not bias.numel() and config.groups.num == 1 and config.score != "sqrtsoftplus":
        selection_scores = logits.float()  # the same order, without the rounding of scores
    if config.groups.num > 1:
        selection_scores = keep_best_groups(selection_scores, config.groups)
    experts = selection_scores.topk(config.top_k, dim=-1).indices
    return weigh_experts(scores, experts, config)


def weigh_experts(
    scores: torch.Tensor,  # [n, experts] float32
    experts: torch.Tensor,  # [n, top_k] int64
    config: RoutingConfig,
) -> Routing:
    """Weights of experts that are selected already: by score, or by a table of token ids."""
    weights = scores.gather(1, experts)
    if config.is_normed:
        weights = weights / (weights.sum(-1, keepdim=True) + _TINY)
    return Routing(experts=experts, weights=weights * config.scale)


def score_experts(logits: torch.Tensor, kind: Score) -> torch.Tensor:  # [n, experts] -> float32
    """The score of every expert for every token."""
    logits = logits.float()
    if kind == "softmax":
        return logits.softmax(-1)
    return sigmoid(logits) if kind == "sigmoid" else softplus(logits).sqrt()


def keep_best_groups(
    selection_scores: torch.Tensor,  # [n, experts]
    groups: ExpertGroups,
) -> torch.Tensor:  # [n, experts]
    """The scores, with -inf for experts of groups that are not among a token's best."""
    grouped = selection_scores.view(selection_scores.shape[0], groups.num, -1)  # [n, groups, each]
    best = grouped.topk(groups.num_scored, dim=-1).values.sum(-1)  # [n, groups]
    is_best = torch.zeros_like(best, dtype=torch.bool)
    is_best.scatter_(1, best.topk(groups.num_selected, dim=-1).indices, True)
    return grouped.masked_fill(~is_best[..., None], float("-inf")).flatten(1)


def without_padding(
    routing: Routing,
    slots: torch.Tensor,  # [n] int64
    *,
    page_size: int,
    num_experts: int,
) -> Routing:
    """The same with padding routed to no expert, so that padding reads no weights."""
    is_padding = (slots < page_size)[:, None]  # [n, 1]
    return Routing(
        experts=routing.experts.masked_fill(is_padding, num_experts), weights=routing.weights
    )
