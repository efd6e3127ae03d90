"""The adapter weights of a decoder: memory for some adapters at a time, written slot by slot."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from outrider.errors import RequestError
from outrider.models.adapters.peft_folder import (
    AdaptableModules,
    AdapterNames,
    LoraPair,
    parse_adapter,
    read_files,
)
from outrider.models.layers.attention_layer import pad_rows
from outrider.models.rank_cuts import RankCuts, StoredShapes
from outrider.ops.linear.linear import Linear
from outrider.ops.linear.lora import AdaptedLinear, LoraStack, StepSlots, sorted_slots
from outrider.wire.adapter import (
    DRAFT_PART,
    NO_ADAPTER_CHECKS,
    TARGET_PART,
    Adapter,
    AdapterFiles,
    AdapterLoad,
)

ReadRows = Callable[[str], torch.Tensor]  # the rows that a rank has of the weight of this name
StackRows = Callable[[ReadRows], torch.Tensor]  # the rows of a linear layer, fused and in its order


class AdapterWeights(Protocol):
    """The adapters of a target."""

    def check(self, adapter: Adapter) -> None:
        """Refuse an adapter that is damaged or made for another model."""
        ...

    def read(self, adapter: Adapter) -> AdapterFiles:
        """The files of an adapter, or a refusal if they are gone, replaced or damaged."""
        ...

    def place(self, load: AdapterLoad) -> None:
        """Write an adapter to a slot. Steps that were submitted before still read the old one.

        No file is opened: what was read before this step is all that it needs.
        """
        ...

    def begin(self, slots: torch.Tensor, num_rows: int) -> None:
        """Use these slots, [num_query] or none, in the step that runs with so many rows."""
        ...


class NoAdapters:
    """For a target whose layers take no adapters."""

    def check(self, adapter: Adapter) -> None:
        NO_ADAPTER_CHECKS.check(adapter)

    def read(self, adapter: Adapter) -> AdapterFiles:
        return NO_ADAPTER_CHECKS.read(adapter)

    def place(self, load: AdapterLoad) -> None:
        raise AssertionError(f"there is no slot for {load}")

    def begin(self, slots: torch.Tensor, num_rows: int) -> None:
        del num_rows
        assert not len(slots), "no row has an adapter"


NO_ADAPTERS = NoAdapters()


@dataclass(frozen=True, slots=True, kw_only=True)
class BankSizes:
    """What memory is reserved for."""

    num_slots: int  # adapters at a time; 0: the target takes none
    max_rank: int
    has_head: bool = False  # the draft head takes adapters, too


_MOST_WAITING = 4  # adapters in host memory besides as many as there are slots

NO_BANK = BankSizes(num_slots=0, max_rank=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedLayer:
    """A linear layer with the adapters of the weights that it was made of."""

    names: Sequence[str]  # of its weights
    stack_rows: StackRows
    stack: LoraStack


class AdapterBank:
    """Owns the matrices of all adapted layers. Adapters are read where the layers are made.

    The bank of a draft head is made by that of its target: an adapter has one slot in both.
    """

    def __init__(
        self,
        sizes: BankSizes,
        *,
        shapes: Mapping[str, tuple[int, ...]],  # of the whole model
        names: AdapterNames,
        cuts: RankCuts,
        dtype: torch.dtype,
        device: torch.device,
        part: str = TARGET_PART,  # of an adapter, that the layers are changed by
    ) -> None:
        self._sizes = sizes
        self._part = part
        self._head: AdapterBank | None = None  # for `for_head`
        self._shapes = shapes
        self._names = names
        self._cuts = cuts
        self._dtype = dtype
        self._device = device
        self._layers: list[AdaptedLayer] = []
        self._min_rows = 1  # of its layers
        self._slots = StepSlots()
        self._holding = threading.Lock()
        self._held: OrderedDict[Adapter, AdapterFiles] = OrderedDict()  # oldest first

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
        self._min_rows = max(self._min_rows, linear.min_rows)
        return AdaptedLinear(linear, stack, self._slots)

    def for_head(
        self, shapes: Mapping[str, tuple[int, ...]], names: AdapterNames
    ) -> "AdapterBank | None":
        """The bank of the draft head, whose tensors have these shapes; None if it takes none."""
        if not self._sizes.has_head:
            return None
        stored = StoredShapes(shapes=shapes, parts=lambda _: ())
        self._head = AdapterBank(
            self._sizes,
            shapes=shapes,
            names=names,
            cuts=RankCuts(stored, [stored], 0),  # every rank has the whole head
            dtype=self._dtype,
            device=self._device,
            part=DRAFT_PART,
        )
        return self._head

    @property
    def has_head(self) -> bool:
        """Whether a draft head was made with a bank of its own."""
        return self._head is not None

    def check(self, adapter: Adapter) -> None:
        if adapter.is_wanted:
            self.read(adapter)

    def read(self, adapter: Adapter) -> AdapterFiles:
        """The files, from host memory if they are there."""
        with self._holding:  # the threads of an LLM check while another one runs steps
            files = self._held.pop(adapter, None) or self._read_new(adapter)
            self._held[adapter] = files
            while len(self._held) > self._sizes.num_slots + _MOST_WAITING:
                self._held.popitem(last=False)
        return files

    def place(self, load: AdapterLoad) -> None:
        if self._head is not None:
            self._head.place(load)
        pairs = self._pairs(load.files)
        for layer in self._layers:
            a, b = layer.stack.a[load.slot].zero_(), layer.stack.b[load.slot].zero_()
            for columns, name in self._parts(layer.names):
                if name in pairs:
                    pair = pairs[name]
                    rank = columns[: pair.a.shape[0]]
                    a[rank.start : rank.stop] = self._inputs_of(name, pair)
                    b[:, rank.start : rank.stop] = self._outputs_of(layer, name, pair)

    def begin(self, slots: torch.Tensor, num_rows: int) -> None:
        rows = pad_rows(slots, num_rows) if len(slots) else slots
        self._slots.current = sorted_slots(rows)

    def padded(self, num_rows: int) -> int:
        """How many rows its layers get in a step of so many: they are all padded alike."""
        return max(num_rows, self._min_rows)

    def _read_new(self, adapter: Adapter) -> AdapterFiles:
        try:
            files = read_files(adapter)
            self._check_parts(files)
        except RequestError as error:
            raise RequestError(f"the adapter in {adapter.path} cannot be used: {error}") from error
        return files

    def _check_parts(self, files: AdapterFiles) -> None:
        """Refuse what does not fit. The part of a head is ignored where no head takes it."""
        if self._head is None and TARGET_PART not in files.parts:
            raise RequestError(
                f"it changes the draft head alone ({DRAFT_PART}/), and no head takes adapters "
                "here; start with --enable-draft-lora and an EAGLE head as --draft"
            )
        self._pairs(files)
        if self._head is not None:
            self._head._pairs(files)

    def _pairs(self, files: AdapterFiles) -> dict[str, LoraPair]:
        """The matrices of these layers by the names of their weights; none without their part."""
        if self._part not in files.parts:
            return {}
        folder = Path(files.adapter.path) / self._part
        return parse_adapter(files.parts[self._part], folder, self._modules())

    def _modules(self) -> AdaptableModules:
        names = [name for layer in self._layers for name in layer.names]
        return AdaptableModules(
            shapes={name: self._shapes[name] for name in names},
            names=self._names,
            max_rank=self._sizes.max_rank,
        )

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
