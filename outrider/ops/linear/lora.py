"""LoRA: a linear layer plus B A x, with the adapter of each row.

`a` and `b` hold the matrices of all slots in fixed memory. An adapter is loaded by writing to it,
so captured graphs stay valid. Slot 0 is for rows without an adapter and holds zeros.
"""

from dataclasses import dataclass

import torch

from outrider.ops.graph_break import graph_break
from outrider.ops.linear.linear import Linear
from outrider.ops.linear.lora_by_slot import add_by_slot


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraStack:
    """The adapter matrices of one linear layer. A smaller rank is padded with zeros."""

    a: torch.Tensor  # [slots, rank, in]
    b: torch.Tensor  # [slots, out, rank] times the scale of the adapter


@dataclass(frozen=True, slots=True)
class RowSlots:
    """The adapter slot of each row of activations; none in a step without adapters."""

    slots: torch.Tensor  # [n] int64
    order: torch.Tensor  # [n] int64 rows by ascending slot


def sorted_slots(slots: torch.Tensor) -> RowSlots:  # [n] int64
    """The slots, and the rows in the order in which kernels read them."""
    return RowSlots(slots, torch.argsort(slots, stable=True))


_NO_ROWS = torch.empty(0, dtype=torch.int64)


class StepSlots:
    """Owns the slots of the step that runs. The adapted layers of a model share one.

    Linear layers get activations only, so the decoder writes the slots here before its layers run.
    """

    def __init__(self) -> None:
        self.current = RowSlots(_NO_ROWS, _NO_ROWS)


class AdaptedLinear:
    """Another linear layer, plus the adapter of each row."""

    def __init__(self, linear: Linear, stack: LoraStack, slots: StepSlots) -> None:
        self._linear = linear
        self._slots = slots
        self.stack = stack
        self.min_rows = linear.min_rows

    def __call__(self, x: torch.Tensor) -> torch.Tensor:  # [n, in] -> [n, out]
        return self._plus_adapter(self._linear(x), x)

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self._plus_adapter(self._linear.plus(x, residual), x)

    def _plus_adapter(self, out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        rows = self._slots.current
        if len(rows.slots):
            add_lora_(out, x, rows, self.stack)
        return out


def add_lora_(
    out: torch.Tensor,  # [n, out] written
    x: torch.Tensor,  # [n, in]
    rows: RowSlots,
    stack: LoraStack,
) -> None:
    """Add B A x of each row's adapter. The bits of a row depend on that row and its adapter."""
    if x.is_cuda:
        from outrider.ops.linear.lora_triton import add_lora_triton_

        add_lora_triton_(out, x, rows.slots, rows.order, stack.a, stack.b)
    else:
        add_lora_reference_(out, x, rows.slots, stack)


def add_lora_reference_(
    out: torch.Tensor,  # [n, out] written
    x: torch.Tensor,  # [n, in]
    slots: torch.Tensor,  # [n] int64
    stack: LoraStack,
) -> None:
    """The same in plain torch, one adapter after the other. A CPU skips rows without one."""
    assert x.shape[0] == slots.shape[0], "every row of activations has a slot"
    graph_break(add_by_slot, out, x, slots, stack.a, stack.b)
