"""Where the tensors of a model come from: a folder, or random numbers in a benchmark."""

from collections.abc import Callable
from typing import Protocol

import torch

from outrider.models.tensor_cut import WHOLE, Cut
from outrider.ops.linear.any_weight import AnyWeight


class TensorSource(Protocol):
    """Tensors by name, whole or in part."""

    def read(self, name: str, cut: Cut = WHOLE) -> torch.Tensor:
        """A part of the tensor of this name, which has the shape that `tensor_shapes` gives it."""
        ...

    def read_weight(self, name: str, cut: Cut = WHOLE) -> AnyWeight:
        """A part of the weight of a linear layer, as it is stored."""
        ...


class RenamedTensors:
    """Another source, whose tensors are read by other names."""

    def __init__(self, source: TensorSource, stored: Callable[[str], str]) -> None:
        self._source = source
        self._stored = stored  # the name in that source

    def read(self, name: str, cut: Cut = WHOLE) -> torch.Tensor:
        return self._source.read(self._stored(name), cut)

    def read_weight(self, name: str, cut: Cut = WHOLE) -> AnyWeight:
        return self._source.read_weight(self._stored(name), cut)
