"""Sizes of the tiles in which the decode kernel runs."""

from dataclasses import dataclass

import torch

from outrider.ops import gpu_facts
from outrider.ops.attention.softmax_blocks_triton import block_keys
from outrider.ops.attention.splits_triton import SPLIT

FEW_ROWS = 4  # up to this many rows a step does not fill the GPU
ROOMY = 128 << 10  # bytes of shared memory with room for one more stage at any head dim


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTiles:
    """Sizes of the decode kernel. Keys, split and warps depend on the model only; the others change
    no bits.

    Tiles of 16 and of 32 rows run the same mma instruction, with warps along keys and head dim.
    """

    rows: int = 32  # (node, head) pairs of a tile at most
    keys: int = 64
    split: int = SPLIT
    num_warps: int = 4
    num_stages: int = 3
    many: int = 256  # tiles of a step that fill a GPU without parallel splits
    worth: int = 64  # tiles for which one more sequential split costs less than a merge launch


def decode_tiles(
    head_dim: int,
    dtype: torch.dtype,
    *,
    packed: int = 32,
    num_rows: int = 1,
    shared: int = gpu_facts.HOPPER_SHARED,
) -> DecodeTiles:
    """The tiles of a model, for steps with `packed` (node, head) pairs per row and kv head."""
    keys = block_keys(head_dim, dtype)
    if dtype == torch.float32:  # no tensor cores: operands are held in registers
        return DecodeTiles(rows=16, keys=keys, num_warps=8, num_stages=2)
    # Smaller tiles read the history more often, but finish sooner while most SMs are idle.
    # Below a head dim of 64 the two sizes would lay out their warps differently.
    is_small = head_dim >= 64 and (packed <= 16 or num_rows <= FEW_ROWS)
    rows = 16 if is_small else 32
    # One more stage pays where a step fills the GPU about once.
    fills = is_small and 2 * FEW_ROWS < num_rows <= 16 * FEW_ROWS
    stages = 4 if fills and shared >= ROOMY else 3
    return DecodeTiles(rows=rows, keys=keys, num_stages=stages)
