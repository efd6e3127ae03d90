"""Takes rows of GGUF blocks apart, as they lie in a file."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from outrider.ops.compiled.block_kind import BLOCK, KINDS, BlockKind, KindName
from outrider.ops.compiled.block_parts import BlockParts

_Heads = tuple[torch.Tensor, ...]
_SIGN = 0x80  # of a signed byte; flipping it adds 128
_SIX_BITS, _FOUR_BITS, _TWO_BITS = 0x3F, 0x0F, 0x03


@dataclass(frozen=True, slots=True)
class GgufRows:
    """A weight as rows of blocks of one kind, without loss."""

    name: KindName
    rows: torch.Tensor  # [out, row_bytes] uint8

    @property
    def shape(self) -> tuple[int, int]:
        kind = KINDS[self.name]
        outputs, row_bytes = self.rows.shape
        return outputs, row_bytes // kind.stored_bytes * kind.span * BLOCK

    @property
    def heads(self) -> tuple[torch.Tensor, ...]:  # [out, spans] float16 each
        """What the blocks of a span share: a scale, and perhaps a minimum."""
        size, spans = KINDS[self.name].head_bytes, self._spans
        stored = spans[..., -size:] if self.name == "Q6_K" else spans[..., :size]
        return stored.contiguous().view(torch.float16).unbind(2)

    def parts(self) -> BlockParts:
        """All numbers of these rows."""
        read = _READERS.get(self.name, _read_plain)
        return read(self._spans, KINDS[self.name], self.heads)

    @property
    def _spans(self) -> torch.Tensor:  # [out, spans, bytes]
        return self.rows.view(len(self.rows), -1, KINDS[self.name].stored_bytes)


def _read_plain(spans: torch.Tensor, kind: BlockKind, heads: _Heads) -> BlockParts:
    """Scale and perhaps minimum, then the codes; low halves of bytes are the first 16 inputs."""
    stored = spans[..., kind.head_bytes :]
    codes = stored ^ _SIGN  # 8 bits are stored signed
    if kind.bits == 4:
        codes = torch.cat([stored & _FOUR_BITS, stored >> 4], dim=2)
    return BlockParts(kind=kind, codes=codes.flatten(1), heads=heads, steps=())


def _read_q5(spans: torch.Tensor, kind: BlockKind, heads: _Heads) -> BlockParts:
    """Scale and perhaps minimum, 32 fifth bits, then the low ones like those of 4 bits."""
    above, stored = torch.split(spans[..., kind.head_bytes :], [4, 16], dim=2)
    places = torch.arange(8, dtype=torch.uint8)
    fifth = ((above[..., None] >> places) & 1).flatten(2)  # [out, spans, 32]
    codes = torch.cat([stored & _FOUR_BITS, stored >> 4], dim=2) | (fifth << 4)
    return BlockParts(kind=kind, codes=codes.flatten(1), heads=heads, steps=())


def _read_q5_k(spans: torch.Tensor, kind: BlockKind, heads: _Heads) -> BlockParts:
    """As Q4_K; between steps and codes, byte i has the fifth bits of inputs i of all 8 blocks."""
    without = torch.cat([spans[..., :16], spans[..., 48:]], dim=2)
    low = _read_q4_k(without, kind, heads)
    places = torch.arange(8, dtype=torch.uint8)[:, None]
    fifth = (spans[..., 16:48].unsqueeze(2) >> places) & 1  # [out, spans, 8, 32]
    return replace(low, codes=low.codes | (fifth.flatten(1) << 4))


def _read_q4_k(spans: torch.Tensor, kind: BlockKind, heads: _Heads) -> BlockParts:
    """Scale and minimum, 8 steps of both in 12 bytes, then 64 inputs per 32 bytes of codes."""
    scale, minimum = heads
    steps, minima, high = torch.split(spans[..., 4:16], 4, dim=2)  # [out, spans, 4]
    steps = torch.cat([steps & _SIX_BITS, (high & _FOUR_BITS) | ((steps >> 2) & 0x30)], dim=2)
    minima = torch.cat([minima & _SIX_BITS, (high >> 4) | ((minima >> 2) & 0x30)], dim=2)
    stored = spans[..., 16:].reshape(*spans.shape[:2], 4, 1, 32)
    codes = torch.cat([stored & _FOUR_BITS, stored >> 4], dim=3)  # [out, spans, 4, 2, 32]
    return BlockParts(
        kind=kind,
        codes=codes.flatten(1),
        heads=(scale, -minimum),
        steps=(_bytes(steps), _bytes(minima)),
    )


def _read_q6_k(spans: torch.Tensor, kind: BlockKind, heads: _Heads) -> BlockParts:
    """Low 4 bits and high 2 bits of the codes, a step per 16 inputs, then the scale."""
    outer = spans.shape[:2]
    low = spans[..., :128].reshape(*outer, 2, 1, 64)  # 128 inputs per 64 bytes
    low = torch.cat([low & _FOUR_BITS, low >> 4], dim=3).flatten(2)
    high = spans[..., 128:192].reshape(*outer, 2, 1, 32)  # 128 inputs per 32 bytes
    high = torch.cat([(high >> shift) & _TWO_BITS for shift in (0, 2, 4, 6)], dim=3).flatten(2)
    steps = _bytes(spans[..., 192:208]).view(len(spans), -1, 2)  # [out, blocks, 2]
    return BlockParts(
        kind=kind,
        codes=(low | (high << 4)).flatten(1),
        heads=heads,
        steps=(steps[..., 0], steps[..., 1]),
    )


def _bytes(steps: torch.Tensor) -> torch.Tensor:  # [out, spans, n] -> [out, spans * n] int8
    return steps.contiguous().view(torch.int8).flatten(1)


_READERS: dict[KindName, Callable[[torch.Tensor, BlockKind, _Heads], BlockParts]] = {
    "Q5_0": _read_q5,
    "Q5_1": _read_q5,
    "Q4_K": _read_q4_k,
    "Q5_K": _read_q5_k,
    "Q6_K": _read_q6_k,
}
