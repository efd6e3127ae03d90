"""`--quantization fp8`: the projections of a folder become e4m3 codes, one scale per output.

What is sensitive and small stays as it is stored: the embedding, the head, routers, norms, biases.
"""

from collections.abc import Mapping

import torch

from outrider.models.expert_tensors import STACKED_DOWN, STACKED_GATE_UP
from outrider.models.quantised.expert_stacks import StackAxes, slice_stack
from outrider.models.quantised.find_packed import PackedWeight
from outrider.models.quantised.grouped_integers import quantised_weight
from outrider.models.quantised.packed_form import Parts, two_axes
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


def weights_at_load(
    shapes: Mapping[str, tuple[int, ...]],  # of stored tensors of floats, by name
    axes: StackAxes,  # of experts in one tensor
) -> dict[str, PackedWeight]:
    """Every projection in codes, by name."""
    found: dict[str, PackedWeight] = {}
    for name, shape in shapes.items():
        if name.endswith((STACKED_GATE_UP, STACKED_DOWN)):
            found |= slice_stack(name, shape, axes, Fp8Rows)
        elif is_projection(name):
            module, _, suffix = name.rpartition(".")
            found[name] = PackedWeight(form=Fp8Rows(), module=module, suffixes=(suffix,))
    return found


class Fp8Rows:
    """A stored float weight [out, in] as e4m3 codes with one scale per output."""

    scales: tuple[str, ...] = ()  # they are computed

    def __init__(self, weight: str = "weight") -> None:
        self._weight = weight  # suffix of the stored tensor

    def check(self, parts: Parts) -> None:
        two_axes(self._weight, parts[self._weight])

    def shape(self, parts: Parts) -> tuple[int, int]:
        rows, columns = parts[self._weight].shape
        return rows, columns

    def quantised(self, parts: Parts) -> QuantisedWeight:
        codes, scales = quantise_rows(parts[self._weight])
        return quantised_weight("e4m3", codes, scales[None, :], group=codes.shape[1])

    def unit(self, parts: Parts, dim: int) -> int:
        """A row has one scale on all ranks, so a part of its columns needs the whole row."""
        del parts
        return 0 if dim else 1

    def narrow(self, parts: Parts, dim: int, first: int, num: int) -> Mapping[str, torch.Tensor]:
        return {self._weight: parts[self._weight].narrow(dim, first, num)}


def quantise_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[out, in] -> codes [out, in] float8_e4m3fn and scales [out] float32; weight = code * scale.

    The largest number of a row has the largest code.
    """
    wide = weight.float()
    scales = (wide.abs().amax(1) / _LARGEST).clamp_min(_SMALLEST_SCALE)
    codes = (wide / scales[:, None]).clamp_(-_LARGEST, _LARGEST)  # rounding may exceed it
    return codes.to(torch.float8_e4m3fn), scales
