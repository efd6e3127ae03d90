"""Experts that are divided among ranks, each expert whole."""

import torch

from outrider.distributed.rank_group import ExpertRanks, RankGroup
from outrider.errors import ConfigError
from outrider.ops.moe.experts import Experts
from outrider.ops.moe.routing import Routing


def held_experts(num: int, ranks: RankGroup) -> range:
    """The experts that this rank holds; the first ranks have one more where it does not divide."""
    if ranks.experts is None:
        return range(num)
    group = ranks.experts.group
    if num < group.size:
        raise ConfigError(
            f"{num} experts cannot be divided among {group.size} ranks; use at most {num} ranks"
        )
    usual, more = divmod(num, group.size)
    first = group.rank * usual + min(group.rank, more)
    return range(first, first + usual + (group.rank < more))


def divide_experts(experts: Experts, held: range, ranks: ExpertRanks | None) -> Experts:
    """The experts of a layer, of which `experts` are the ones held here."""
    if ranks is None:
        return experts
    own = OwnExperts(experts, held)
    return ExchangedExperts(own, ranks.group) if ranks.has_own_tokens else own


class OwnExperts:
    """Adds the outputs of the experts held here. Other ranks add those of theirs."""

    def __init__(self, experts: Experts, held: range) -> None:
        self._experts = experts
        self._held = held

    def add_(self, x: torch.Tensor, routing: Routing, residual: torch.Tensor) -> None:
        held = self._held
        is_here = (routing.experts >= held.start) & (routing.experts < held.stop)
        # A number past the held ones is an expert that is not there.
        numbers = torch.where(is_here, routing.experts - held.start, len(held))
        self._experts.add_(x, Routing(experts=numbers, weights=routing.weights), residual)


class ExchangedExperts:
    """Every rank sends its tokens to all ranks, and gets back what their experts add to them.

    All ranks have the same number of tokens, padding included, which asks no expert.
    """

    def __init__(self, own: OwnExperts, ranks: RankGroup) -> None:
        self._own = own
        self._ranks = ranks

    def add_(self, x: torch.Tensor, routing: Routing, residual: torch.Tensor) -> None:
        hidden, experts = x.shape[1], routing.experts
        # One exchange for all: expert numbers are small enough to be exact in float32.
        packed = torch.cat([x.float(), routing.weights, experts.float()], dim=1)
        tokens = self._ranks.stack(packed).flatten(0, 1)  # [size * n, ...]
        parts = torch.split(tokens, [hidden, experts.shape[1], experts.shape[1]], dim=1)
        everywhere, weights, numbers = parts
        sums = x.new_zeros(everywhere.shape)
        self._own.add_(
            everywhere.to(x.dtype).contiguous(),
            Routing(experts=numbers.to(experts.dtype), weights=weights.contiguous()),
            sums,
        )
        received = self._ranks.exchange(sums.view(self._ranks.size, *x.shape))
        for part in received.unbind():  # in the order of ranks
            residual.add_(part)
