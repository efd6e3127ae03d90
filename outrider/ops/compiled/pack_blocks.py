"""Brings a weight of blocks into the order of the compiled kernels, and makes blocks of floats."""

import torch
import torch.nn.functional as F

from outrider.ops.compiled.block_kind import BLOCK, TILE
from outrider.ops.compiled.block_parts import BlockParts

_LEVELS = 127.0


def pack_blocks(parts: BlockParts) -> torch.Tensor:  # [tiles, tile_bytes] uint8
    """The bytes in the order of the kernels. Outputs are padded to whole tiles with zeros."""
    codes = parts.codes.view(parts.outputs, parts.num_blocks, BLOCK)
    by_block = [_interleave(_code_bytes(codes, parts.kind.bits), 4)]
    by_block += [_interleave_numbers(steps) for steps in parts.steps]
    blocks = torch.cat(by_block, dim=2)  # [tiles, blocks, 16 * block_bytes]
    heads = torch.cat([_interleave_numbers(head) for head in parts.heads], dim=2)
    spans = blocks.reshape(*heads.shape[:2], -1)
    return torch.cat([spans, heads], dim=2).flatten(1)


def _code_bytes(codes: torch.Tensor, bits: int) -> torch.Tensor:  # [out, blocks, 32]
    """The codes of a block in as few bytes as they need, [out, blocks, code_bytes].

    Low halves of bytes are the first 16 inputs. Of what is above, byte i has: of 6 bits the pairs
    of inputs i, i + 8, i + 16 and i + 24; of 5 bits those of inputs i, i + 4, .., i + 28.
    """
    if bits == 8:
        return codes
    low, high = (codes & 0x0F).chunk(2, dim=2)
    nibbles = low | (high << 4)
    if bits == 4:
        return nibbles
    width = bits - 4
    parts = (codes >> 4).view(*codes.shape[:2], 8 // width, 4 * width)
    shifts = torch.arange(0, 8, width, dtype=torch.uint8)[:, None]
    above = (parts << shifts).sum(2, dtype=torch.uint8)  # no two have a bit in common
    return torch.cat([nibbles, above], dim=2)


def _interleave_numbers(numbers: torch.Tensor) -> torch.Tensor:  # [out, n]
    """The bytes of every number of all 16 outputs side by side, [tiles, n, 16 * bytes]."""
    stored = numbers.contiguous().view(torch.uint8).view(*numbers.shape, -1)
    return _interleave(stored, stored.shape[2])


def _interleave(parts: torch.Tensor, size: int) -> torch.Tensor:  # [out, n, bytes]
    """Groups of `size` bytes of all 16 outputs side by side, [tiles, n, 16 * bytes]."""
    padded = F.pad(parts, (0, 0, 0, 0, 0, -parts.shape[0] % TILE))
    groups = padded.reshape(-1, TILE, parts.shape[1], parts.shape[2] // size, size)
    return groups.permute(0, 2, 3, 1, 4).flatten(2)


def quantise_rows(weight: torch.Tensor) -> torch.Tensor:  # [out, in] -> [out, row_bytes] uint8
    """Rows of Q8_0 blocks: 8 bits and a scale per 32 inputs, by the rule of GGUF."""
    padded = F.pad(weight.float(), (0, -weight.shape[1] % BLOCK))
    wide = padded.view(len(padded), -1, BLOCK)
    scale = wide.abs().amax(2, keepdim=True) / _LEVELS  # [out, blocks, 1]
    inverse = torch.where(scale == 0, 0.0, 1.0 / scale)
    codes = (wide * inverse).round_().to(torch.int8)
    stored = scale.half().view(torch.uint8)  # [out, blocks, 2]
    return torch.cat([stored, codes.view(torch.uint8)], dim=2).flatten(1)
