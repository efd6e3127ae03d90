"""Integers with a scale and perhaps a zero point per group, as one weight of small codes."""

import torch

from outrider.errors import ConfigError
from outrider.ops.linear.quantised_weight import (
    CodeKind,
    GroupScales,
    QuantisedWeight,
    pack_nibbles,
)

_NONE = torch.empty(0)
_NO_ORDER = torch.empty(0, dtype=torch.int64)


def quantised_weight(
    kind: CodeKind,
    codes: torch.Tensor,  # [out, in], or [out, in / 2] for 4 bits
    scales: torch.Tensor,  # [groups, out]
    *,
    group: int,
    factors: torch.Tensor = _NONE,  # [out] or [0]
) -> QuantisedWeight:
    """A weight whose inputs have their own order, without zero points."""
    rows, block = codes.shape[0], 2 if kind in ("int4", "e2m1") else 1
    zeros = torch.empty(0, rows, dtype=torch.int8)
    groups = GroupScales(scales=scales, zeros=zeros, factors=factors, group=group)
    return QuantisedWeight(
        kind=kind,
        codes=codes,
        scales=groups,
        inputs=codes.shape[1] * block,
        block=block,
        order=_NO_ORDER,
    )


def grouped_integers(
    integers: torch.Tensor,  # [out, in] int32, none is negative
    scales: torch.Tensor,  # [groups, out]
    zeros: torch.Tensor,  # [groups, out] int32, or [0, out] for the middle of the range
    *,
    bits: int,
    order: torch.Tensor | None,  # [in] the group of every input; consecutive inputs if None
) -> QuantisedWeight:
    """Codes of 4 bits, or of 8 for all other widths."""
    columns, groups = integers.shape[1], _groups(integers.shape[1], scales.shape[0], order)
    places = _NO_ORDER
    if not _are_consecutive(groups, scales.shape[0]):
        places = torch.argsort(groups, stable=True)
        integers, groups = integers[:, places], groups[places]
    if not _are_consecutive(groups, scales.shape[0]):  # a part of a weight with an order
        scales = scales[groups]
        zeros = zeros[groups] if len(zeros) else zeros
    middle = 0 if bits == 4 else 2 ** (bits - 1)
    stored = GroupScales(
        scales=scales,
        zeros=(zeros - middle).to(torch.int8 if bits == 4 else torch.int16),
        factors=_NONE,
        group=columns // scales.shape[0],
    )
    codes = pack_nibbles(integers, 2) if bits == 4 else (integers - middle).to(torch.int8)
    return QuantisedWeight(
        kind="int4" if bits == 4 else "int8",
        codes=codes,
        scales=stored,
        inputs=columns,
        block=2 if bits == 4 else 1,
        order=places,
    )


def _are_consecutive(groups: torch.Tensor, num: int) -> bool:  # groups [in]
    """Whether every group has as many inputs, one after another."""
    size, rest = divmod(groups.shape[0], num)
    places = torch.arange(groups.shape[0])
    return rest == 0 and torch.equal(groups, places // max(size, 1))


def _groups(columns: int, num: int, order: torch.Tensor | None) -> torch.Tensor:  # [columns]
    """The group of every input: in the stored order, or consecutive ones."""
    if order is not None and bool((order >= 0).all()):
        if order.shape[0] != columns or int(order.max()) >= num:
            raise ConfigError(f"g_idx names groups that a weight with {num} groups does not have")
        return order.long()
    if columns % num:
        raise ConfigError(f"{num} groups do not divide {columns} inputs")
    return torch.arange(columns) // (columns // num)
