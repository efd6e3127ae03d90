"""Linear layers over packed weight blocks for x86 CPUs: codes as they are stored, or 8 bits.

Each row of activations is rounded to 8 bits per 32 inputs, as llama.cpp does. Integer sums are
exact, and blocks are added in a fixed order. So the bits of a row do not depend on the other rows.
"""

from collections.abc import Sequence

import torch

from outrider.ops.compiled.block_kind import BLOCK, KIND_NAMES, TILE
from outrider.ops.compiled.block_parts import BlockParts
from outrider.ops.compiled.gguf_rows import GgufRows
from outrider.ops.compiled.pack_blocks import pack_blocks, quantise_rows
from outrider.ops.graph_break import graph_break
from outrider.ops.linear.tiled_product import NO_ORDER, TiledProduct, why_no_products


def supports_blocks() -> bool:
    """Whether this machine has numba, the threads of GNU OpenMP, and an x86 CPU with AVX2."""
    return not why_no_products()


class BlockLinear:
    """Owns a weight in the order of the compiled kernels. Inputs and outputs are float32."""

    min_rows = 1

    def __init__(
        self,
        parts: Sequence[BlockParts],  # of neighbouring outputs; whole tiles, but for the last
        inputs: int,
        order: torch.Tensor = NO_ORDER,  # [in] int64, the input of each code
    ) -> None:
        num_blocks = -(-inputs // BLOCK)
        assert all(part.num_blocks == num_blocks for part in parts), "whole blocks"
        assert have_whole_tiles([part.outputs for part in parts]), "a tile has one kind"
        self.kinds = tuple(KIND_NAMES[part.kind.index] for part in parts)
        packed = [pack_blocks(part) for part in parts]
        tiles = [_tile_table(*each) for each in zip(parts, packed, strict=True)]
        self.product = TiledProduct(
            torch.cat(tiles),
            packed,
            num_blocks=num_blocks,
            inputs=inputs,
            outputs=sum(part.outputs for part in parts),
            order=order,
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(x.shape[0], self.product.outputs)
        graph_break(self._multiply, x.contiguous(), out, False)
        return out

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        graph_break(self._multiply, x.contiguous(), residual, True)
        return residual

    def _multiply(self, x: torch.Tensor, out: torch.Tensor, is_added: bool) -> None:
        self.product.multiply(x, out, is_added=is_added)


def eight_bit_linear(weight: torch.Tensor) -> BlockLinear:  # [out, in]
    """A linear layer whose weight is rounded to 8 bits per 32 inputs."""
    return BlockLinear([GgufRows("Q8_0", quantise_rows(weight)).parts()], weight.shape[1])


def have_whole_tiles(outputs: Sequence[int]) -> bool:
    """Whether parts of so many outputs lie side by side: no tile has outputs of two of them."""
    return not any(each % TILE for each in outputs[:-1])


def _tile_table(part: BlockParts, packed: torch.Tensor) -> torch.Tensor:  # [tiles, NUM_TILE]
    """Kind, address and span of every tile."""
    tiles, tile_bytes = packed.shape
    shift = part.span.bit_length() - 1
    assert part.span == 1 << shift, "a power of two"
    addresses = torch.arange(tiles) * tile_bytes + packed.data_ptr()
    kinds, shifts = (torch.full((tiles,), each) for each in (part.kind.index, shift))
    return torch.stack([kinds, addresses, shifts], dim=1)
