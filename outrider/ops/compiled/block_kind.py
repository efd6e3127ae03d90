"""The kinds of weight blocks that compiled linear layers read, and their layout in memory.

A block is 32 neighbouring inputs of one output. The bytes are those of the GGUF kind of the same
name. 16 outputs form a tile, and the bytes of a tile's blocks are interleaved, so that one vector
instruction multiplies four inputs of all 16 outputs:

    file      out 0: [scale, minimum, codes], [scale, ...], ...   out 1: ...
    memory    tile 0: block 0: codes 0-3 of outs 0..15, codes 4-7 of outs 0..15, ..., 16 scales,
              16 minima; block 1: ...
"""

from dataclasses import dataclass
from typing import Literal

KindName = Literal["Q4_0", "Q4_1", "Q8_0"]

BLOCK = 32  # inputs
TILE = 16  # outputs
HALF_BYTES = 2  # of a scale or a minimum


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockKind:
    """weight = scale * (code - offset) + minimum; without minimum it is 0."""

    index: int  # in KINDS, by which compiled functions are told
    bits: int  # of a code
    offset: int
    has_minimum: bool

    @property
    def code_bytes(self) -> int:
        return BLOCK * self.bits // 8

    @property
    def block_bytes(self) -> int:
        return self.code_bytes + HALF_BYTES * (1 + self.has_minimum)


KINDS: dict[KindName, BlockKind] = {
    "Q4_0": BlockKind(index=0, bits=4, offset=8, has_minimum=False),
    "Q4_1": BlockKind(index=1, bits=4, offset=0, has_minimum=True),
    "Q8_0": BlockKind(index=2, bits=8, offset=128, has_minimum=False),
}
