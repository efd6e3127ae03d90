"""Which token an embedding belongs to."""

import torch

from outrider.wire.embedded_span import EmbeddedSpan

_NUM_AT_ONCE = 2048  # rows whose hashes are computed together
_SEED = 20261116  # of the factors; any will do


class EmbeddingIndex:
    """Finds rows of the target's embedding by their bits. It is built when it is first needed."""

    def __init__(self, embedding: torch.Tensor) -> None:  # [vocab, hidden]
        self._embedding = embedding
        self._sorted: tuple[torch.Tensor, torch.Tensor] | None = None  # hashes, and their tokens

    def find(self, span: EmbeddedSpan) -> tuple[int, ...]:
        """The token of each embedding, -1 for one that no token has. Of equal ones, the first."""
        table = self._embedding
        rows = torch.frombuffer(bytearray(span.values), dtype=torch.float32).view(-1, span.width)
        rows = rows.to(device=table.device, dtype=table.dtype)
        if self._sorted is None:
            self._sorted = torch.sort(_hashes(table), stable=True)
        hashes, tokens = self._sorted
        places = torch.searchsorted(hashes, _hashes(rows)).clamp_max(len(hashes) - 1)
        found = tokens[places]
        is_equal = (table[found] == rows).all(1)
        return tuple(torch.where(is_equal, found, -1).tolist())


def _hashes(rows: torch.Tensor) -> torch.Tensor:  # [n, hidden] -> [n] int64
    """Sums of the bits of each row times odd factors, modulo 2**64."""
    generator = torch.Generator().manual_seed(_SEED)
    factors = torch.randint(-(2**62), 2**62, (rows.shape[1],), generator=generator) | 1
    factors = factors.to(rows.device)
    bits = {2: torch.int16, 4: torch.int32}[rows.element_size()]
    parts = torch.split(rows, _NUM_AT_ONCE)
    return torch.cat([(part.contiguous().view(bits) * factors).sum(1) for part in parts])
