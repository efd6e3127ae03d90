"""The experts of a mixture: each token through the experts it is routed to.

`make_experts` chooses between the torch form and our kernels by the device of the weights.
"""

from typing import Protocol

import torch

from outrider.errors import ConfigError
from outrider.ops.moe.expert_gate import NO_BIASES, ExpertBiases, apply_gate
from outrider.ops.moe.expert_stack import ExpertStack, QuantisedExperts
from outrider.ops.moe.gate_form import SWIGLU, ExpertGate
from outrider.ops.moe.group_product import GroupProduct, make_group_product, takes_tiles
from outrider.ops.moe.routing import Routing

_ALIGNMENT_BYTES = 16  # of a row, for the grouped product


class Experts(Protocol):
    """Adds to every row of the residual the weighted outputs of the row's experts."""

    def add_(self, x: torch.Tensor, routing: Routing, residual: torch.Tensor) -> None: ...


class GroupedExperts:
    """The portable form: rows sorted by expert, one product per selected expert."""

    def __init__(
        self,
        *,
        num: int,  # experts
        gate_up: GroupProduct,  # [experts, 2 * intermediate, hidden] gate, then up
        down: GroupProduct,  # [experts, hidden, intermediate]
        gate: ExpertGate = SWIGLU,
        biases: ExpertBiases = NO_BIASES,
    ) -> None:
        self._num_experts = num
        self._gate = gate
        self._has_biases = biases.has_any
        if biases.has_any:  # the rows of padding have none
            self._gate_up_bias, self._down_bias = (
                torch.cat([bias, bias.new_zeros(1, bias.shape[1])])
                for bias in (biases.gate_up, biases.down)
            )
        self._gate_up = gate_up
        self._down = down

    def add_(self, x: torch.Tensor, routing: Routing, residual: torch.Tensor) -> None:
        (num_tokens, hidden), top_k = x.shape, routing.experts.shape[1]
        selected = routing.experts.flatten()  # [pairs] a pair is a token and one of its experts
        group, num_pairs = self._gate_up.row_group, selected.shape[0]
        places, ends = place_by_expert(selected, self._num_experts, row_group=group)
        num_places = num_pairs + (group - 1) * min(num_pairs, self._num_experts + 1)
        pairs = x[:, None].expand(num_tokens, top_k, hidden).reshape(-1, hidden)
        grouped = x.new_zeros(num_places, hidden).index_copy_(0, places, pairs)
        gate_up = self._gate_up(grouped, ends)
        if self._has_biases:
            gate_up.index_add_(0, places, self._gate_up_bias[selected])
        active = apply_gate(gate_up, self._gate)
        outputs = self._down(active, ends).index_select(0, places)
        if self._has_biases:
            outputs.add_(self._down_bias[selected])
        # The rows of padding are not computed and may hold NaN.
        outputs.masked_fill_((selected == self._num_experts)[:, None], 0.0)
        shares = outputs.view(num_tokens, top_k, hidden)
        residual.add_(shares.mul_(routing.weights[..., None]).sum(1))  # in the order of the token


def place_by_expert(
    selected: torch.Tensor,  # [pairs] int64 expert of each pair, num_experts for padding
    num_experts: int,
    *,
    row_group: int,  # a power of two
) -> tuple[torch.Tensor, torch.Tensor]:  # [pairs] int64, [experts] int32
    """Where each pair goes so that experts lie one after another, and where each expert ends.

    Every expert starts at a multiple of the group; pairs of padding come last.
    """
    counts = torch.bincount(selected, minlength=num_experts + 1)
    padded = (counts + (row_group - 1)).bitwise_and_(-row_group)
    ends = padded.cumsum(0)
    order = selected.argsort(stable=True)
    expert = selected[order]
    rank = torch.arange(selected.shape[0], device=selected.device)
    # In sorted order an expert's pairs start after all pairs before it, and go to its first place.
    shift = (ends - padded) - (counts.cumsum(0) - counts)  # [experts + 1]
    places = torch.empty_like(selected).scatter_(0, order, rank + shift[expert])
    return places, ends[:num_experts].to(torch.int32)


class KernelExperts:
    """Our own kernels, on CUDA: blocks of tokens that are routed to one expert."""

    def __init__(
        self,
        *,
        gate_up: ExpertStack,  # [experts, 2 * intermediate, hidden] gate, then up
        down: ExpertStack,  # [experts, hidden, intermediate]
        gate: ExpertGate = SWIGLU,
        biases: ExpertBiases = NO_BIASES,
    ) -> None:
        from outrider.ops.moe.experts_triton import add_experts_  # a CPU has no Triton

        self._gate_up = gate_up
        self._down = down
        self._add = add_experts_
        self._gate = gate
        self._biases = biases

    def add_(self, x: torch.Tensor, routing: Routing, residual: torch.Tensor) -> None:
        experts = routing.experts.to(torch.int32)  # no copy if the routing kernel wrote them
        self._add(
            x, experts, routing.weights, self._gate_up, self._down, residual,
            gate=self._gate, biases=self._biases,
        )  # fmt: skip


def make_experts(
    gate_up: ExpertStack,
    down: ExpertStack,
    *,
    gate: ExpertGate = SWIGLU,
    biases: ExpertBiases = NO_BIASES,
) -> Experts:
    """The form for the device of the weights. Quantised ones are on CUDA."""
    if isinstance(gate_up, QuantisedExperts) or isinstance(down, QuantisedExperts):
        return KernelExperts(gate_up=gate_up, down=down, gate=gate, biases=biases)
    if not takes_tiles(gate_up):
        check_alignment(gate_up, down)
    if gate_up.is_cuda:
        return KernelExperts(gate_up=gate_up, down=down, gate=gate, biases=biases)
    return group_experts(gate_up, down, gate=gate, biases=biases)


def group_experts(
    gate_up: torch.Tensor,
    down: torch.Tensor,
    *,
    gate: ExpertGate = SWIGLU,
    biases: ExpertBiases = NO_BIASES,
) -> GroupedExperts:
    """The portable form of dense weights."""
    return GroupedExperts(
        num=len(gate_up),
        gate_up=make_group_product(gate_up),
        down=make_group_product(down),
        gate=gate,
        biases=biases,
    )


def check_alignment(gate_up: torch.Tensor, down: torch.Tensor) -> None:
    """Refuse widths that neither our kernels nor the library's grouped product can read."""
    for name, weight in {"hidden_size": gate_up, "expert width": down}.items():
        if weight.shape[2] * weight.element_size() % _ALIGNMENT_BYTES:
            raise ConfigError(
                f"the {name} {weight.shape[2]} of a model with experts must be a multiple of "
                f"{_ALIGNMENT_BYTES // weight.element_size()}; use another model"
            )
