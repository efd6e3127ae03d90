"""LoRA: a linear layer plus B A x, with the adapter of each row.

`a` and `b` hold the matrices of all slots in fixed memory. An adapter is loaded by writing to it,
so captured graphs stay valid. Slot 0 is for rows without an adapter and holds zeros.
"""

from dataclasses import dataclass

import torch

from outrider.ops.linear.linear import Linear

# Rows whose matrices are copied side by side. It bounds the memory of a long prompt.
_ROWS_AT_ONCE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraStack:
    """The adapter matrices of one linear layer. A smaller rank is padded with zeros."""

    a: torch.Tensor  # [slots, rank, in]
    b: torch.Tensor  # [slots, out, rank] times the scale of the adapter


class RowSlots:
    """The adapter slot of each row of activations in the step that runs.

    All adapted layers of a model share one: linear layers get activations only.
    """

    def __init__(self) -> None:
        self.current = torch.empty(0, dtype=torch.int64)  # [n], or [0] in a step without adapters


class AdaptedLinear:
    """Another linear layer, plus the adapter of each row."""

    def __init__(self, linear: Linear, stack: LoraStack, slots: RowSlots) -> None:
        self._linear = linear
        self._slots = slots
        self.stack = stack
        self.min_rows = linear.min_rows

    def __call__(self, x: torch.Tensor) -> torch.Tensor:  # [n, in] -> [n, out]
        return self._plus_adapter(self._linear(x), x)

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self._plus_adapter(self._linear.plus(x, residual), x)

    def _plus_adapter(self, out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        slots = self._slots.current
        if len(slots):
            add_lora_(out, x, slots, self.stack)
        return out


def add_lora_(
    out: torch.Tensor,  # [n, out] written
    x: torch.Tensor,  # [n, in]
    slots: torch.Tensor,  # [n] int64
    stack: LoraStack,
) -> None:
    """Add B A x of each row's adapter. The bits of a row depend on that row and its adapter."""
    add_lora_reference_(out, x, slots, stack)


def add_lora_reference_(
    out: torch.Tensor,  # [n, out] written
    x: torch.Tensor,  # [n, in]
    slots: torch.Tensor,  # [n] int64
    stack: LoraStack,
) -> None:
    """The same in plain torch: one product of a matrix and a vector for each row."""
    assert x.shape[0] == slots.shape[0], "every row of activations has a slot"
    for first in range(0, x.shape[0], _ROWS_AT_ONCE):
        rows = slice(first, first + _ROWS_AT_ONCE)
        low = torch.bmm(stack.a[slots[rows]], x[rows, :, None])  # [rows, rank, 1]
        out[rows].add_(torch.bmm(stack.b[slots[rows]], low).squeeze(2))
