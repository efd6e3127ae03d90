"""Which experts a token asks, and how much each of them counts: pure functions of its logits."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from outrider.models.expert_config import ExpertGroups, RoutingConfig, Score
from outrider.models.layers.mlp import FeedStep

_TINY = 1e-20  # sigmoid scores may all underflow; a softmax never does


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """The experts of every token; padding asks expert `num_experts`, which does not exist."""

    experts: torch.Tensor  # [n, top_k] int64, or int32 on CUDA
    weights: torch.Tensor  # [n, top_k] float32


def route(
    logits: torch.Tensor,  # [n, experts]
    routing: RoutingConfig,
    bias: torch.Tensor,  # [experts] float32, for choosing only; [0] where there is none
    step: FeedStep,
) -> Routing:
    """The best experts of every query token, best first; padding asks nobody."""
    num_experts, groups = logits.shape[1], routing.groups
    is_fused = logits.is_cuda and (groups.num == 1 or num_experts.bit_count() == 1)
    if not is_fused:
        return without_padding(choose_experts(logits, routing, bias), step, num_experts)
    from outrider.ops.moe.routing_triton import route as launch  # a CPU installation has no Triton

    experts, weights = launch(
        logits,
        bias,
        step.slots,
        page_size=step.page_size,
        top_k=routing.top_k,
        score=routing.score,
        is_normed=routing.is_normed,
        scale=routing.scale,
        groups=(groups.num, groups.num_selected, groups.num_scored),
    )
    return Routing(experts=experts, weights=weights)


def choose_experts(
    logits: torch.Tensor,  # [n, experts]
    routing: RoutingConfig,
    bias: torch.Tensor,  # [experts] float32, for choosing only; [0] where there is none
) -> Routing:
    """The best experts of every token, best first."""
    if (
        routing.score == "softmax"
        and routing.is_normed
        and routing.groups.num == 1
        and not bias.numel()
    ):
        # The others' share cancels out: a softmax over those that are asked is the same law.
        best, experts = logits.float().topk(routing.top_k, dim=-1)
        weights = best.softmax(-1)
        return Routing(
            experts=experts, weights=weights if routing.scale == 1 else weights * routing.scale
        )
    scores = score(logits, routing.score)
    merits = scores + bias if bias.numel() else scores
    if routing.groups.num > 1:
        merits = keep_best_groups(merits, routing.groups)
    experts = merits.topk(routing.top_k, dim=-1).indices
    return weigh(scores, experts, routing)


def weigh(
    scores: torch.Tensor,  # [n, experts] float32
    experts: torch.Tensor,  # [n, top_k] int64
    routing: RoutingConfig,
) -> Routing:
    """Weights for experts that are chosen already: by merit, or by a table of token ids."""
    weights = scores.gather(1, experts)
    if routing.is_normed:
        weights = weights / (weights.sum(-1, keepdim=True) + _TINY)
    return Routing(experts=experts, weights=weights * routing.scale)


def score(logits: torch.Tensor, kind: Score) -> torch.Tensor:  # [n, experts] -> float32
    """How well every expert fits every token."""
    logits = logits.float()
    if kind == "softmax":
        return logits.softmax(-1)
    return logits.sigmoid() if kind == "sigmoid" else F.softplus(logits).sqrt()


def keep_best_groups(
    merits: torch.Tensor,  # [n, experts]
    groups: ExpertGroups,
) -> torch.Tensor:  # [n, experts]
    """The merits, but the worst for experts of groups that are not among a token's best."""
    grouped = merits.view(merits.shape[0], groups.num, -1)  # [n, groups, each]
    best = grouped.topk(groups.num_scored, dim=-1).values.sum(-1)  # [n, groups]
    kept = torch.zeros_like(best, dtype=torch.bool)
    kept.scatter_(1, best.topk(groups.num_selected, dim=-1).indices, True)
    return grouped.masked_fill(~kept[..., None], float("-inf")).flatten(1)


def without_padding(routing: Routing, step: FeedStep, num_experts: int) -> Routing:
    """The same, but padding asks nobody: no expert is read for its sake."""
    is_padding = (step.slots < step.page_size)[:, None]  # [n, 1]
    return Routing(
        experts=routing.experts.masked_fill(is_padding, num_experts), weights=routing.weights
    )
