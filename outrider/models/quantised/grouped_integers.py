"""Integers with a scale and perhaps a zero point per group, as one weight of small codes."""

import torch

from outrider.models.quantised.unpack_bits import bytes_of_words, unpack_words
from outrider.ops.linear.quantised_weight import (
    CodeKind,
    GroupScales,
    QuantisedWeight,
    pack_nibbles,
    unpack_nibbles,
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
    zeros: torch.Tensor | None = None,  # [groups, out] int8; None: codes have no zero points
) -> QuantisedWeight:
    """A weight whose inputs have their own order."""
    block = 2 if kind in ("int4", "e2m1") else 1
    if zeros is None:
        zeros = torch.empty(0, codes.shape[0], dtype=torch.int8)
    groups = GroupScales(scales=scales, zeros=zeros, factors=factors, group=group)
    return QuantisedWeight(
        kind=kind,
        codes=codes,
        scales=groups,
        inputs=codes.shape[1] * block,
        block=block,
        order=_NO_ORDER,
    )


def codes_of_words(words: torch.Tensor, bits: int, inputs: int) -> torch.Tensor:
    """The integers in int32 words along the inputs, as codes of 4 bits, or of 8 for other widths.

    [out, words] -> [out, ceil(in / 2)] uint8, or [out, in] int8 less the middle of their range.
    The bytes of a word are read as they are: most weights are not unpacked at load.
    """
    if bits == 4:
        return bytes_of_words(words)[:, : -(-inputs // 2)]
    if bits == 8:
        return (bytes_of_words(words)[:, :inputs] ^ 128).view(torch.int8)
    integers: torch.Tensor = unpack_words(words, bits)[:, :inputs] - 2 ** (bits - 1)
    return integers.to(torch.int8)


def grouped_integers(
    codes: torch.Tensor,  # [out, ...] as `codes_of_words` gives them
    inputs: int,
    scales: torch.Tensor,  # [groups, out]
    zeros: torch.Tensor,  # [groups, out] int32, or [0, out] for the middle of the range
    *,
    bits: int,
    order: torch.Tensor | None,  # [in] int64 the group of every input; consecutive inputs if None
) -> QuantisedWeight:
    """A weight whose codes lie in the order of their groups."""
    assert codes.shape[1] == (-(-inputs // 2) if bits == 4 else inputs), "checked by the form"
    groups, places = _groups(inputs, scales.shape[0], order), _NO_ORDER
    if not are_consecutive(groups, scales.shape[0]):
        places = torch.argsort(groups, stable=True)
        codes, groups = _permuted(codes, places, bits), groups[places]
    if not are_consecutive(groups, scales.shape[0]):  # a part of a weight with an order
        scales = scales[groups]
        zeros = zeros[groups] if len(zeros) else zeros
    middle = 0 if bits == 4 else 2 ** (bits - 1)
    stored = GroupScales(
        scales=scales,
        zeros=(zeros - middle).to(torch.int8 if bits == 4 else torch.int16),
        factors=_NONE,
        group=inputs // scales.shape[0],
    )
    return QuantisedWeight(
        kind="int4" if bits == 4 else "int8",
        codes=codes,
        scales=stored,
        inputs=inputs,
        block=2 if bits == 4 else 1,
        order=places,
    )


def _permuted(codes: torch.Tensor, places: torch.Tensor, bits: int) -> torch.Tensor:
    if bits != 4:
        return codes[:, places]
    return pack_nibbles(unpack_nibbles(codes, 2)[:, places], 2)


def are_consecutive(groups: torch.Tensor, num: int) -> bool:  # groups [in]
    """Whether each of `num` groups has as many inputs, one after another."""
    size, rest = divmod(groups.shape[0], num)
    places = torch.arange(groups.shape[0])
    return rest == 0 and torch.equal(groups.long(), places // max(size, 1))


def _groups(columns: int, num: int, order: torch.Tensor | None) -> torch.Tensor:  # [columns]
    """The group of every input: in the stored order, or consecutive ones."""
    return torch.arange(columns) // (columns // num) if order is None else order
