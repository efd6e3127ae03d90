"""What an expert has besides its two projections: the activation between them, and biases."""

from dataclasses import dataclass

import torch

from outrider.ops.linear.swiglu import swiglu
from outrider.ops.moe.gate_form import ExpertGate


@dataclass(frozen=True, slots=True)
class ExpertBiases:
    """Added to the outputs of projections; both are [0] where there are none."""

    gate_up: torch.Tensor  # [experts, 2 * intermediate] gate, then up
    down: torch.Tensor  # [experts, hidden]

    @property
    def has_any(self) -> bool:
        return self.down.numel() > 0


NO_BIASES = ExpertBiases(torch.empty(0), torch.empty(0))


def apply_gate(
    gate_up: torch.Tensor,  # [n, 2 * intermediate] gate, then up
    form: ExpertGate,
) -> torch.Tensor:  # [n, intermediate]
    """The torch form of the gate."""
    if form.is_swiglu:
        return swiglu(gate_up, form.limit)
    gate, up = gate_up.chunk(2, dim=-1)
    gate, up = gate.clamp(max=form.limit), up.clamp(-form.limit, form.limit)
    # exp and division have the same bits wherever an element is (`fixed_activations`).
    active = gate / torch.exp(gate * -form.alpha).add_(1.0)
    return active.mul_(up + form.shift)
