"""Reads the experts of a layer: as quantised codes where kernels read them, else dense."""

import logging
from collections.abc import Callable
from functools import cache
from typing import Protocol

import torch

from outrider.models.expert_tensors import ExpertSizes, ExpertTensors
from outrider.ops.linear.any_weight import AnyWeight
from outrider.ops.linear.quantised_linear import fits_kernels
from outrider.ops.linear.quantised_weight import QuantisedWeight
from outrider.ops.moe.expert_stack import (
    ExpertStack,
    QuantisedExperts,
    expert_storage,
    stack_codes,
)

_log = logging.getLogger(__name__)


class PartReader(Protocol):
    """Reads this rank's part of a tensor."""

    def read_part(self, name: str) -> torch.Tensor: ...

    def read_weight_part(self, name: str) -> AnyWeight:
        """The same, quantised if it is stored so."""
        ...


def read_experts(
    reader: PartReader,
    tensors: ExpertTensors,
    layer: str,  # prefix of its tensors
    sizes: ExpertSizes,  # of the held experts
    held: range,
    make_empty: Callable[[tuple[int, ...]], torch.Tensor],  # on the device, of this shape
) -> tuple[ExpertStack, ExpertStack]:
    """Gate and up projections, and down projections."""

    def read(name: str) -> torch.Tensor:
        if isinstance(first, torch.Tensor) and name == names[0]:
            return first
        return reader.read_part(layer + name)

    def codes(names: tuple[str, ...], shape: tuple[int, ...]) -> QuantisedExperts | None:
        parts = (reader.read_weight_part(layer + name) for name in names)
        return stack_codes(parts, shape, device)

    device, names = make_empty((0,)).device, tensors.gate_up_names(held)
    first = reader.read_weight_part(layer + names[0]) if names else None  # tells what all are
    if isinstance(first, QuantisedWeight) and fits_kernels(first, device):
        quantised = codes(names, sizes.gate_up), codes(tensors.down_names(held), sizes.down)
        if quantised[0] is not None and quantised[1] is not None:
            return quantised[0], quantised[1]
        _tell_of_widening()
    gate_up, down = make_empty(sizes.gate_up), make_empty(sizes.down)
    tensors.read_gate_up(read, gate_up, held)
    tensors.read_down(read, down, held)
    return gate_up, down


class ExpertBytes:
    """Adds up the memory of the experts of a model, and logs it with the last layer."""

    def __init__(self, num_layers: int) -> None:
        self._num_layers = num_layers
        self._num_left = num_layers
        self._total_bytes = 0

    def add(self, gate_up: ExpertStack, down: ExpertStack) -> None:
        """These are the experts of one more layer."""
        self._total_bytes += gate_up.nbytes + down.nbytes
        self._num_left -= 1
        if self._num_left:
            return
        storage = expert_storage(down)
        advice = "; --dtype bfloat16 takes half of that" if storage == "float32" else ""
        gigabytes = self._total_bytes / 1e9
        _log.info(
            "experts are %s: %.2f GB in %d layers%s", storage, gigabytes, self._num_layers, advice
        )


@cache
def _tell_of_widening() -> None:
    """Once: the layers of a model are alike."""
    _log.warning(
        "quantised experts are widened at load, and take several times the memory: a rank would "
        "cut them inside of a group of codes, or their inputs have orders of their own; try "
        "another --tensor-parallel-size"
    )
