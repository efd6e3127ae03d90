"""The adapter weights of a decoder: memory for some adapters at a time, written slot by slot."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from outrider.errors import RequestError
from outrider.models.adapters.peft_folder import AdaptableModules, LoraPair, read_adapter
from outrider.models.layers.attention_layer import pad_rows
from outrider.models.rank_cuts import RankCuts
from outrider.models.text_model_fields import Nesting
from outrider.ops.linear.linear import Linear
from outrider.ops.linear.lora import AdaptedLinear, LoraStack, StepSlots, sorted_slots
from outrider.wire.adapter import NO_ADAPTER_CHECKS, Adapter

ReadRows = Callable[[str], torch.Tensor]  # the rows that a rank has of the weight of this name
StackRows = Callable[[ReadRows], torch.Tensor]  # the rows of a linear layer, fused and in its order


class AdapterWeights(Protocol):
    """The adapters of a target."""

    def check(self, adapter: Adapter) -> None:
        """Refuse an adapter that is damaged or made for another model."""
        ...

    def place(self, slot: int, adapter: Adapter) -> None:
        """Write an adapter to a slot. Steps that were submitted before still read the old one."""
        ...

    def begin(self, slots: torch.Tensor, num_rows: int) -> None:
        """Use these slots, [num_query] or none, in the step that runs with so many rows."""
        ...


class NoAdapters:
    """For a target whose layers take no adapters."""

    def check(self, adapter: Adapter) -> None:
        NO_ADAPTER_CHECKS.check(adapter)

    def place(self, slot: int, adapter: Adapter) -> None:
        raise AssertionError(f"there is no slot {slot} for {adapter}")

    def begin(self, slots: torch.Tensor, num_rows: int) -> None:
        del num_rows
        assert not len(slots), "no row has an adapter"


NO_ADAPTERS = NoAdapters()


@dataclass(frozen=True, slots=True, kw_only=True)
class BankSizes:
    """What memory is reserved for."""

    num_slots: int  # adapters at a time; 0: the target takes none
    max_rank: int


_MOST_WAITING = 4  # adapters in host memory besides as many as there are slots

NO_BANK = BankSizes(num_slots=0, max_rank=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedLayer:
    """A linear layer with the adapters of the weights that it was made of."""

    names: Sequence[str]  # of its weights
    stack_rows: StackRows
    stack: LoraStack


class AdapterBank:
    """Owns the matrices of all adapted layers. Adapters are read where the layers are made."""

    def __init__(
        self,
        sizes: BankSizes,
        *,
        shapes: Mapping[str, tuple[int, ...]],  # of the whole model
        nesting: Nesting,
        cuts: RankCuts,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._sizes = sizes
        self._shapes = shapes
        self._nesting = nesting
        self._cuts = cuts
        self._dtype = dtype
        self._device = device
        self._layers: list[AdaptedLayer] = []
        self._slots = StepSlots()
        self._holding = threading.Lock()
        self._held: OrderedDict[Adapter, dict[str, LoraPair]] = OrderedDict()  # oldest first

    def adapt(
        self,
        linear: Linear,
        names: Sequence[str],
        stack_rows: StackRows,
        *,
        shape: tuple[int, ...],  # [out, in] of the layer on this rank
    ) -> Linear:
        """The same layer, with the adapters of these weights."""
        outputs, inputs = shape
        rank, slots = len(names) * self._sizes.max_rank, self._sizes.num_slots + 1
        stack = LoraStack(a=self._zeros(slots, rank, inputs), b=self._zeros(slots, outputs, rank))
        self._layers.append(AdaptedLayer(names=tuple(names), stack_rows=stack_rows, stack=stack))
        return AdaptedLinear(linear, stack, self._slots)

    def check(self, adapter: Adapter) -> None:
        if adapter.is_wanted:
            self._find(adapter)

    def place(self, slot: int, adapter: Adapter) -> None:
        pairs = self._find(adapter)
        for layer in self._layers:
            a, b = layer.stack.a[slot].zero_(), layer.stack.b[slot].zero_()
            for columns, name in self._parts(layer.names):
                if name in pairs:
                    pair = pairs[name]
                    rank = columns[: pair.a.shape[0]]
                    a[rank.start : rank.stop] = self._inputs_of(name, pair)
                    b[:, rank.start : rank.stop] = self._outputs_of(layer, name, pair)

    def begin(self, slots: torch.Tensor, num_rows: int) -> None:
        rows = pad_rows(slots, num_rows) if len(slots) else slots
        self._slots.current = sorted_slots(rows)

    def _find(self, adapter: Adapter) -> dict[str, LoraPair]:
        """The matrices in host memory. Between its check and its step no file can change them."""
        with self._holding:  # the threads of an LLM check while another one runs steps
            pairs = self._held.pop(adapter, None) or self._read(adapter)
            self._held[adapter] = pairs
            while len(self._held) > self._sizes.num_slots + _MOST_WAITING:
                self._held.popitem(last=False)
        return pairs

    def _read(self, adapter: Adapter) -> dict[str, LoraPair]:
        names = [name for layer in self._layers for name in layer.names]
        modules = AdaptableModules(
            shapes={name: self._shapes[name] for name in names},
            nesting=self._nesting,
            max_rank=self._sizes.max_rank,
        )
        try:
            return read_adapter(adapter, modules)
        except RequestError as error:
            raise RequestError(f"the adapter in {adapter.path} cannot be used: {error}") from error

    def _parts(self, names: Sequence[str]) -> Iterator[tuple[range, str]]:
        """The columns of the low rank that each weight of a fused layer has."""
        size = self._sizes.max_rank
        for part, name in enumerate(names):
            yield range(part * size, (part + 1) * size), name

    def _inputs_of(self, name: str, pair: LoraPair) -> torch.Tensor:  # [rank, in]
        """A, with the inputs that this rank has."""
        cut = self._cuts.cut(name)
        return cut.of(pair.a) if cut.dim == 1 else pair.a

    def _outputs_of(
        self, layer: AdaptedLayer, name: str, pair: LoraPair
    ) -> torch.Tensor:  # [out, rank]
        """B times the scale, in the rows of the layer; rows of its other weights are zeros."""

        def rows(each: str) -> torch.Tensor:
            cut = self._cuts.cut(each)
            whole = pair.b.float() * pair.scale
            if each != name:
                whole = whole.new_zeros(self._shapes[each][0], whole.shape[1])
            return cut.of(whole) if cut.dim == 0 else whole

        return layer.stack_rows(rows)

    def _zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=self._dtype, device=self._device)
