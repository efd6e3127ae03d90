"""`--quantization fp8`: the projections of a folder become e4m3 codes, one scale per output.

What is sensitive and small stays as it is stored: the embedding, the head, routers, norms, biases.
"""

from collections.abc import Mapping

import torch

from outrider.models.quantised.grouped_integers import quantised_weight
from outrider.models.quantised.packed_weights import Parts
from outrider.ops.linear.quantised_weight import QuantisedWeight

_LARGEST = 448.0  # of e4m3
_SMALLEST_SCALE = 2.0**-126  # a row of smaller numbers than 448 times this becomes zeros
_PROJECTIONS = frozenset(
    {
        *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        *("qkv_proj", "gate_up_proj"),  # Phi-3
        *("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"),  # latent attention
        *("in_proj_qkvz", "in_proj_qkv", "in_proj_z", "out_proj"),  # recurrent layers
        *("w1", "w2", "w3"),  # experts
    }
)


def is_projection(name: str) -> bool:
    """Whether a tensor of this name is quantised at load."""
    module, _, suffix = name.rpartition(".")
    return suffix == "weight" and module.rpartition(".")[2] in _PROJECTIONS


class Fp8Rows:
    """A stored float weight [out, in] as e4m3 codes with one scale per output."""

    def shape(self, parts: Parts) -> tuple[int, ...]:
        return tuple(parts["weight"].shape)

    def quantised(self, parts: Parts) -> QuantisedWeight:
        codes, scales = quantise_rows(parts["weight"])
        return quantised_weight("e4m3", codes, scales[None, :], group=codes.shape[1])

    def unit(self, parts: Parts, dim: int) -> int:
        """A row has one scale on all ranks, so a part of its columns needs the whole row."""
        del parts
        return 0 if dim else 1

    def narrow(self, parts: Parts, dim: int, first: int, num: int) -> Mapping[str, torch.Tensor]:
        return {"weight": parts["weight"].narrow(dim, first, num)}


def quantise_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[out, in] -> codes [out, in] float8_e4m3fn and scales [out] float32; weight = code * scale.

    The largest number of a row has the largest code.
    """
    wide = weight.float()
    scales = (wide.abs().amax(1) / _LARGEST).clamp_min(_SMALLEST_SCALE)
    codes = (wide / scales[:, None]).clamp_(-_LARGEST, _LARGEST)  # rounding may exceed it
    return codes.to(torch.float8_e4m3fn), scales
