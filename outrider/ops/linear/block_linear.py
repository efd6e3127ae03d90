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
from outrider.ops.compiled.why_not_compiled import why_not_compiled
from outrider.ops.graph_break import graph_break

NO_NORM = torch.zeros(1)
NO_ORDER = torch.empty(0, dtype=torch.int64)


def why_no_blocks() -> str:
    """Why weights cannot be packed on this machine; empty if they can."""
    return why_not_compiled("outrider.ops.compiled.block_product")


def supports_blocks() -> bool:
    """Whether this machine has numba, the threads of GNU OpenMP, and an x86 CPU with AVX2."""
    return not why_no_blocks()


class BlockLinear:
    """Owns a weight in the order of the compiled kernels. Inputs and outputs are float32."""

    min_rows = 1

    def __init__(
        self,
        parts: Sequence[BlockParts],  # of neighbouring outputs; whole tiles, but for the last
        inputs: int,
        order: torch.Tensor = NO_ORDER,  # [in] int64, the input of each code
    ) -> None:
        from outrider.ops.compiled.block_product import ADDED, block_product
        from outrider.ops.compiled.coded_rows import scratch_bytes
        from outrider.ops.compiled.thread_team import run_team

        num_blocks = -(-inputs // BLOCK)
        assert all(part.num_blocks == num_blocks for part in parts), "whole blocks"
        assert have_whole_tiles([part.outputs for part in parts]), "a tile has one kind"
        self.inputs, self.outputs = inputs, sum(part.outputs for part in parts)
        self.kinds = tuple(KIND_NAMES[part.kind.index] for part in parts)
        self._packed = [pack_blocks(part) for part in parts]  # which the table points to
        self._tiles = torch.cat(
            [_tile_table(*each) for each in zip(parts, self._packed, strict=True)]
        )
        self._weight = self._tiles.data_ptr(), num_blocks, inputs, self.outputs
        self._order = order.contiguous()
        self._order_fields = self._order.data_ptr(), len(order)
        self._product, self._added = int(block_product.address), ADDED
        self._scratch_bytes, self._run_team = scratch_bytes, run_team

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(x.shape[0], self.outputs)
        graph_break(self._multiply, x.contiguous(), out, 0)
        return out

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        graph_break(self._multiply, x.contiguous(), residual, self._added)
        return residual

    def _multiply(self, x: torch.Tensor, out: torch.Tensor, is_added: int) -> None:
        self.run(self._product, x, out, NO_NORM, is_added)

    def fields(self, norm: torch.Tensor) -> tuple[int, ...]:
        """What compiled functions read of the weight, and of the norm before it (`run`)."""
        return (*self._weight, norm.data_ptr(), norm.shape[0] - 1, *self._order_fields)

    def run(
        self,
        function: int,  # address of one in `block_product`
        x: torch.Tensor,  # [rows, inputs] contiguous
        out: torch.Tensor,  # [rows, columns] contiguous
        norm: torch.Tensor,  # [inputs + 1] weight of a norm and its eps; [1] for none
        *own: int,  # the function's own fields
    ) -> None:
        """Run a compiled function over the weight, on all threads."""
        rows = x.shape[0]
        if not rows:
            return
        size = self._scratch_bytes(rows=rows, inputs=self.inputs, threads=torch.get_num_threads())
        scratch = torch.empty(size, dtype=torch.uint8)
        operands = rows, x.data_ptr(), scratch.data_ptr(), out.data_ptr()
        self._run_team(function, (*self.fields(norm), *operands, *own))


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
