"""The blocks of a converted GGUF file as a stored form: rows of blocks of one kind."""

from collections.abc import Iterable

import torch

from outrider.errors import ConfigError
from outrider.hub.block_file import split_name
from outrider.models.quantised.find_packed import PackedWeight
from outrider.models.quantised.packed_form import Parts, two_axes
from outrider.ops.compiled.block_kind import BLOCK, KINDS, KindName
from outrider.ops.compiled.gguf_rows import GgufRows
from outrider.ops.linear.block_codes import codes_of_blocks
from outrider.ops.linear.quantised_weight import QuantisedWeight

_ROWS_AT_ONCE = 4096  # bounds the memory while a weight is widened
KIND_NAMES: dict[str, KindName] = {name: name for name in KINDS}


class GgufForm:
    """Rows of blocks; the suffix of the stored tensor is their kind."""

    scales: tuple[str, ...] = ()  # they lie among the codes

    def __init__(self, kind: KindName) -> None:
        self._kind = kind
        self._span = KINDS[kind].span * BLOCK  # inputs
        self._bytes = KINDS[kind].stored_bytes  # of so many inputs

    def check(self, parts: Parts) -> None:
        rows = parts[self._kind]
        _, num_bytes = two_axes(self._kind, rows)
        if rows.dtype != torch.uint8 or num_bytes % self._bytes:
            raise ConfigError(f"{self._kind} has rows that are not whole blocks")

    def shape(self, parts: Parts) -> tuple[int, int]:
        return GgufRows(self._kind, parts[self._kind]).shape

    def quantised(self, parts: Parts) -> QuantisedWeight:
        return codes_of_blocks(GgufRows(self._kind, parts[self._kind].contiguous()))

    def widen(self, parts: Parts) -> torch.Tensor:  # [out, in] float32
        """Exactly the numbers of the blocks; codes with zero points in float32 round minima."""
        rows = parts[self._kind]
        numbers = torch.empty(self.shape(parts))
        for first in range(0, len(rows), _ROWS_AT_ONCE):
            some = slice(first, first + _ROWS_AT_ONCE)
            numbers[some] = GgufRows(self._kind, rows[some].contiguous()).parts().widen()
        return numbers

    def unit(self, parts: Parts, dim: int) -> int:
        del parts
        return self._span if dim else 1

    def narrow(self, parts: Parts, dim: int, first: int, num: int) -> Parts:
        rows = parts[self._kind]
        if dim:
            places = (first // self._span * self._bytes, -(-num // self._span) * self._bytes)
            return {self._kind: rows.narrow(1, *places)}
        return {self._kind: rows.narrow(0, first, num)}


def find_gguf_blocks(stored: Iterable[str]) -> dict[str, PackedWeight]:
    """The weights whose blocks have these names, by name."""
    found = {}
    for name in stored:
        weight, kind = split_name(name)
        if kind in KIND_NAMES:
            form = GgufForm(KIND_NAMES[kind])
            found[weight] = PackedWeight(form=form, module=weight, suffixes=(kind,))
    return found
