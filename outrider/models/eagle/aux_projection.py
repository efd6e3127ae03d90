"""The hidden states of draft rows from aux hidden states of the target."""

from dataclasses import dataclass

import torch

from outrider.models.eagle.eagle_layer import apply_padded
from outrider.ops.linear.linear import Linear
from outrider.ops.norm_rope.rms_norm import Norm


@dataclass(frozen=True, slots=True, kw_only=True)
class AuxProjection:
    """A norm, where the head has one, and a linear layer."""

    norm: Norm  # weight [aux], or [aux layers, hidden] for one norm each; empty for none
    linear: Linear  # [aux -> width]

    def __call__(self, aux_hidden_states: torch.Tensor) -> torch.Tensor:  # [n, aux] -> [n, width]
        shape = self.norm.weight.shape
        if not shape[0]:
            return apply_padded(self.linear, aux_hidden_states)
        normed = self.norm(aux_hidden_states.view(-1, *shape))
        return apply_padded(self.linear, normed.flatten(1))
