"""The kinds of weight blocks that compiled linear layers read, and their layout in memory.

A block is 32 neighbouring inputs of one output. A span is the blocks that share a scale. Numbers
are those of the GGUF kind of the same name, or those of groups with zero points. 16 outputs form a
tile, and the bytes of a tile are
interleaved, so that one vector instruction multiplies four inputs of all 16 outputs:

    tile 0: span 0: block 0: codes 0-3 of outs 0..15, codes 4-7 of outs 0..15, ...,
                             steps of outs 0..15
                    block 1: ...
                    scales of outs 0..15, minima or zero points of outs 0..15
            span 1: ...
"""

from dataclasses import dataclass
from typing import Literal

KindName = Literal["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
GroupName = Literal["int4", "int8"]

BLOCK = 32  # inputs
TILE = 16  # outputs
HALF_BYTES = 2  # of a scale, a minimum or a zero point
FLOAT_BYTES = 4  # of the scale of a group


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockKind:
    """weight = scale * step * (code - offset - zero) + minimum * last step.

    Steps are integers of 8 bits; without them they count as 1. Without minimum or zero point it is
    0. The scale of a kind with zero points is a float32, others are float16.
    """

    index: int  # by which compiled functions are told
    bits: int  # of a code
    offset: int = 0
    has_minimum: bool = False
    has_zeros: bool = False
    span: int = 1  # blocks, a power of two; 0 where weights of the kind differ
    num_steps: int = 0  # for the codes of a block: of all, or one for each half
    stored_bytes: int = 0  # of a span of one output in a GGUF file

    @property
    def code_bytes(self) -> int:
        return BLOCK * self.bits // 8

    @property
    def block_bytes(self) -> int:
        """Codes and steps of a block of one output."""
        has_last = self.has_minimum and self.num_steps > 0
        return self.code_bytes + self.num_steps + has_last

    @property
    def head_bytes(self) -> int:
        """What the blocks of a span share."""
        if self.has_zeros:
            return FLOAT_BYTES + HALF_BYTES
        return HALF_BYTES * (1 + self.has_minimum)


KINDS: dict[KindName, BlockKind] = {
    "Q4_0": BlockKind(index=0, bits=4, offset=8, stored_bytes=18),
    "Q4_1": BlockKind(index=1, bits=4, has_minimum=True, stored_bytes=20),
    "Q8_0": BlockKind(index=2, bits=8, offset=128, stored_bytes=34),
    "Q4_K": BlockKind(index=3, bits=4, has_minimum=True, span=8, num_steps=1, stored_bytes=144),
    "Q6_K": BlockKind(index=4, bits=6, offset=32, span=8, num_steps=2, stored_bytes=210),
    "Q5_0": BlockKind(index=7, bits=5, offset=16, stored_bytes=22),
    "Q5_1": BlockKind(index=8, bits=5, has_minimum=True, stored_bytes=24),
    "Q5_K": BlockKind(index=9, bits=5, has_minimum=True, span=8, num_steps=1, stored_bytes=176),
}
# Of checkpoints with a scale and a zero point per group of inputs (GPTQ, AWQ, compressed-tensors).
GROUP_KINDS: dict[GroupName, BlockKind] = {
    "int4": BlockKind(index=5, bits=4, has_zeros=True, span=0),
    "int8": BlockKind(index=6, bits=8, has_zeros=True, span=0, offset=128),
}
KIND_NAMES: dict[int, str] = {  # by index
    kind.index: name for kinds in (KINDS, GROUP_KINDS) for name, kind in kinds.items()
}
