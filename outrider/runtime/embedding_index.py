"""Which token an embedding belongs to."""

from collections.abc import Callable

import torch

from outrider.wire.embedded_span import EmbeddedSpan

Embed = Callable[[torch.Tensor], torch.Tensor]  # [n] tokens -> [n, hidden]

_NUM_AT_ONCE = 2048  # rows whose hashes are computed together
_SEED = 20261116  # of the factors; any will do


class EmbeddingIndex:
    """Finds what the target reads for tokens by its bits. It is built when it is first needed.

    `embed` computes it: a family may scale the rows of its table before it takes embeddings.
    """

    def __init__(self, embed: Embed, *, table: torch.Tensor) -> None:  # [vocab, hidden]
        self._embed = embed
        self._table = table
        self._sorted: tuple[torch.Tensor, torch.Tensor] | None = None  # hashes, and their tokens

    def find(self, span: EmbeddedSpan) -> tuple[int, ...]:
        """The token of each embedding, -1 for one that no token has. Of equal ones, the first."""
        if self._sorted is None:
            self._sorted = torch.sort(self._vocabulary_hashes(), stable=True)
        hashes, tokens = self._sorted
        values = torch.frombuffer(bytearray(span.values), dtype=torch.float32)
        found: list[int] = []
        for part in torch.split(values.view(-1, span.width), _NUM_AT_ONCE):
            rows = part.to(device=self._table.device, dtype=self._table.dtype)
            places = torch.searchsorted(hashes, _hashes(rows)).clamp_max(len(hashes) - 1)
            likely = tokens[places]
            is_equal = (self._embed(likely) == rows).all(1)
            found += torch.where(is_equal, likely, -1).tolist()
        return tuple(found)

    def _vocabulary_hashes(self) -> torch.Tensor:  # [vocab] int64
        """No second table is kept: a scaled one would take as much memory as the first."""
        tokens = torch.arange(self._table.shape[0], device=self._table.device)
        parts = torch.split(tokens, _NUM_AT_ONCE)
        return torch.cat([_hashes(self._embed(part)) for part in parts])


def _hashes(rows: torch.Tensor) -> torch.Tensor:  # [n, hidden] -> [n] int64
    """Sums of the bits of each row times odd factors, modulo 2**64."""
    generator = torch.Generator().manual_seed(_SEED)
    factors = torch.randint(-(2**62), 2**62, (rows.shape[1],), generator=generator) | 1
    bits = {2: torch.int16, 4: torch.int32}[rows.element_size()]
    return (rows.contiguous().view(bits) * factors.to(rows.device)).sum(1)
