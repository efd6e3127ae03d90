"""Where the tensors of a decoder come from."""

from collections.abc import Callable
from typing import Protocol

import torch

from outrider.models.tensor_cut import WHOLE, Cut

ReadCut = Callable[[str, Cut], torch.Tensor]  # a part of the tensor of this name


class TensorSource(Protocol):
    """Where the tensors of a decoder come from: a folder, or random numbers in a benchmark."""

    def read(self, name: str, cut: Cut = WHOLE) -> torch.Tensor:
        """A part of the tensor of this name, which has the shape that `tensor_shapes` gives it."""
        ...


class LayerTensors:
    """The tensors of one layer, read by their names below the layer."""

    def __init__(self, prefix: str, read: ReadCut) -> None:
        self._prefix = prefix
        self._read = read

    def read(self, name: str, cut: Cut = WHOLE) -> torch.Tensor:
        return self._read(name.removeprefix(self._prefix), cut)
