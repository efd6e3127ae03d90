"""Makes the linear layers of a model, and notes in what form their weights are stored."""

import logging
from collections import Counter
from collections.abc import Collection, Sequence

import torch

from outrider.ops.linear.any_weight import AnyWeight
from outrider.ops.linear.choose_linear import LinearMaker
from outrider.ops.linear.linear import Linear
from outrider.ops.linear.linear_storage import dtype_name, storage_of
from outrider.wire.runner_facts import WeightStorage

_log = logging.getLogger(__name__)

_UNNAMED = ("other projections",)


class NotedLinears:
    """Owns the counts, in the order in which weights were loaded first."""

    def __init__(self, make: LinearMaker, dtype: torch.dtype) -> None:
        self._make = make
        self._dtype = dtype  # of activations
        self._nums: Counter[tuple[str, str]] = Counter()

    def __call__(self, weight: AnyWeight, names: Sequence[str] = _UNNAMED) -> Linear:
        """A linear layer of the weights of these names."""
        linear = self._make(weight)
        self.note(names, storage_of(linear, self._dtype))
        return linear

    def note(self, names: Sequence[str], storage: str) -> None:
        """The weights of these names are stored so."""
        modules = [name.removesuffix(".weight").rpartition(".")[2] for name in names]
        self._nums[", ".join(modules), storage] += 1

    def note_unused(self, scales: Collection[str]) -> None:
        """These scales of activations are stored, and activations are not quantised."""
        why = f"not used: activations are {dtype_name(self._dtype)}"
        for name in scales:
            self.note([name], why)
        if scales:
            _log.info("%d scales of activations (%s, ...) are %s", len(scales), min(scales), why)

    def facts(self) -> tuple[WeightStorage, ...]:
        return tuple(
            WeightStorage(modules=modules, storage=storage, num=num)
            for (modules, storage), num in self._nums.items()
        )
