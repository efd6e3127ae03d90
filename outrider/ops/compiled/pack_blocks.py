"""Brings the rows of GGUF blocks into the order of the compiled kernels, and makes such rows."""

import torch
import torch.nn.functional as F

from outrider.ops.compiled.block_kind import BLOCK, HALF_BYTES, KINDS, TILE, BlockKind, KindName

_SIGN = 0x80  # of a signed byte; flipping it adds 128
_LEVELS = 127.0


def pack_blocks(
    rows: torch.Tensor,  # [out, blocks * block_bytes] uint8, as in a GGUF file
    kind: BlockKind,
) -> torch.Tensor:  # [tiles, blocks, 16 * block_bytes] uint8
    """The bytes in the order of the kernels. Outputs are padded to whole tiles with zeros."""
    padding = -rows.shape[0] % TILE
    tiles = F.pad(rows, (0, 0, 0, padding)).view(-1, TILE, rows.shape[1])
    blocks = tiles.view(*tiles.shape[:2], -1, kind.block_bytes)  # [tiles, 16, blocks, block_bytes]
    scales, codes = blocks[..., : -kind.code_bytes], blocks[..., -kind.code_bytes :]
    if kind.bits == 8:  # stored signed; the kernels multiply unsigned codes
        codes = codes ^ _SIGN
    return torch.cat([_interleave(codes, 4), _interleave(scales, HALF_BYTES)], dim=2)


def _interleave(parts: torch.Tensor, size: int) -> torch.Tensor:  # [tiles, 16, blocks, n]
    """Groups of `size` bytes of all 16 outputs side by side, [tiles, blocks, 16 * n]."""
    groups = parts.reshape(*parts.shape[:3], -1, size)
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


def widen_rows(rows: torch.Tensor, name: KindName) -> torch.Tensor:  # [out, in] float32
    """The numbers that rows of GGUF blocks stand for."""
    kind = KINDS[name]
    blocks = rows.view(len(rows), -1, kind.block_bytes)  # [out, blocks, block_bytes]
    scales, codes = blocks[..., : -kind.code_bytes], blocks[..., -kind.code_bytes :]
    halves = scales.contiguous().view(torch.float16).float()  # [out, blocks, 1 or 2]
    if kind.bits == 8:
        wide = codes.contiguous().view(torch.int8).float()
    else:  # low halves of the bytes are the first 16 inputs
        wide = torch.cat([codes & 0xF, codes >> 4], dim=2).float() - kind.offset
    wide = wide * halves[:, :, :1]
    if kind.has_minimum:
        wide = wide + halves[:, :, 1:]
    return wide.flatten(1)
