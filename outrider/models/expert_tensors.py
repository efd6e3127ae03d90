"""How the experts of a layer are stored: one tensor per expert, or all experts stacked."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from outrider.models.expert_config import ExpertsConfig
from outrider.models.family import ExpertNames
from outrider.ops.moe.expert_gate import NO_BIASES, ExpertBiases

Shape = tuple[int, ...]
Read = Callable[[str], torch.Tensor]  # the tensor of this name

STACKED_GATE_UP = ".experts.gate_up_proj"
STACKED_DOWN = ".experts.down_proj"


class ExpertTensors(Protocol):
    """The expert tensors of a layer. Names are those below the layer."""

    router: str  # [experts, hidden]
    router_bias: str  # [experts]; empty where there is none

    def shapes(self) -> Iterator[tuple[str, Shape]]: ...

    def gate_up_names(self, held: range) -> tuple[str, ...]:
        """Weights whose rows are those of [held, 2 * intermediate]; none if one tensor has all."""
        ...

    def down_names(self, held: range) -> tuple[str, ...]:
        """Likewise for [held, hidden]."""
        ...

    def read_gate_up(self, read: Read, into: torch.Tensor, held: range) -> None:
        """Copy gate and up projections of the held experts to [held, 2 * intermediate, hidden]."""
        ...

    def read_down(self, read: Read, into: torch.Tensor, held: range) -> None:
        """Copy down projections of the held experts to [held, hidden, intermediate]."""
        ...

    def read_biases(self, read: Read, held: range) -> ExpertBiases:
        """The biases of the held experts, as stored."""
        ...


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """The sizes of the expert tensors of a layer."""

    num: int
    intermediate: int
    hidden: int

    @property
    def gate_up(self) -> Shape:
        return self.num, 2 * self.intermediate, self.hidden

    @property
    def down(self) -> Shape:
        return self.num, self.hidden, self.intermediate


class ApartExperts:
    """Three tensors per expert, with the names of the family."""

    router_bias = ""

    def __init__(self, sizes: ExpertSizes, names: ExpertNames) -> None:
        self.router = f"{names.block}.{names.router}.weight"
        self._sizes = sizes
        self._names = names

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        sizes, names = self._sizes, self._names
        yield self.router, (sizes.num, sizes.hidden)
        for expert in range(sizes.num):
            yield self._name(expert, names.gate), (sizes.intermediate, sizes.hidden)
            yield self._name(expert, names.up), (sizes.intermediate, sizes.hidden)
            yield self._name(expert, names.down), (sizes.hidden, sizes.intermediate)

    def gate_up_names(self, held: range) -> tuple[str, ...]:
        pair = self._names.gate, self._names.up
        return tuple(self._name(expert, part) for expert in held for part in pair)

    def down_names(self, held: range) -> tuple[str, ...]:
        return tuple(self._name(expert, self._names.down) for expert in held)

    def read_gate_up(self, read: Read, into: torch.Tensor, held: range) -> None:
        width = self._sizes.intermediate
        for place, expert in enumerate(held):
            into[place, :width].copy_(read(self._name(expert, self._names.gate)))
            into[place, width:].copy_(read(self._name(expert, self._names.up)))

    def read_down(self, read: Read, into: torch.Tensor, held: range) -> None:
        for place, expert in enumerate(held):
            into[place].copy_(read(self._name(expert, self._names.down)))

    def read_biases(self, read: Read, held: range) -> ExpertBiases:
        del read, held
        return NO_BIASES

    def _name(self, expert: int, part: str) -> str:
        return f"{self._names.block}.experts.{expert}.{part}.weight"


class StackedExperts:
    """Two tensors for all experts of a layer, as transformers 5 can write them."""

    router_bias = ""

    def __init__(self, sizes: ExpertSizes, names: ExpertNames, *, is_transposed: bool) -> None:
        self.router = f"{names.stacked}.{names.router}.weight"
        self._gate_up = names.stacked + STACKED_GATE_UP
        self._down = names.stacked + STACKED_DOWN
        self._sizes = sizes
        self._is_transposed = is_transposed  # [experts, in, out]

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        yield self.router, (self._sizes.num, self._sizes.hidden)
        stored = {self._gate_up: self._sizes.gate_up, self._down: self._sizes.down}
        for name, (num, rows, columns) in stored.items():
            yield name, (num, columns, rows) if self._is_transposed else (num, rows, columns)

    def gate_up_names(self, held: range) -> tuple[str, ...]:
        del held
        return ()

    def down_names(self, held: range) -> tuple[str, ...]:
        del held
        return ()

    def read_gate_up(self, read: Read, into: torch.Tensor, held: range) -> None:
        self._read(read, self._gate_up, into, held)

    def read_down(self, read: Read, into: torch.Tensor, held: range) -> None:
        self._read(read, self._down, into, held)

    def _read(self, read: Read, name: str, into: torch.Tensor, held: range) -> None:
        stored = read(name)[held.start : held.stop]
        into.copy_(stored.transpose(1, 2) if self._is_transposed else stored)

    def read_biases(self, read: Read, held: range) -> ExpertBiases:
        del read, held
        return NO_BIASES


def sizes_of(config: ExpertsConfig, hidden: int) -> ExpertSizes:
    return ExpertSizes(config.num, config.intermediate, hidden)


def are_stacked(stored: Iterable[str]) -> bool:
    """Whether these tensor names are of stacked experts."""
    return any(name.endswith((STACKED_GATE_UP, STACKED_DOWN)) for name in stored)
