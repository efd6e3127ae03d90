"""A weight in tiles as compiled functions read it, alone or as a part of a larger region."""

import ctypes
from collections.abc import Sequence

import torch

from outrider.ops.compiled.why_not_compiled import why_not_compiled

NO_NORM = torch.zeros(1)
NO_ORDER = torch.empty(0, dtype=torch.int64)


def why_no_products() -> str:
    """Why this machine does not multiply by tiles; empty if it does."""
    return why_not_compiled("outrider.ops.compiled.tile_product")


class TiledProduct:
    """Owns a weight and the table of its tiles. Inputs and outputs are float32."""

    def __init__(
        self,
        tiles: torch.Tensor,  # int64 [tiles, NUM_TILE]
        storage: Sequence[torch.Tensor],  # whose memory the table points to
        *,
        num_blocks: int,  # of a row; 0 for dense numbers
        inputs: int,
        outputs: int,
        order: torch.Tensor = NO_ORDER,  # [in] int64, the input of each code
    ) -> None:
        from outrider.ops.compiled.thread_team import run_products
        from outrider.ops.compiled.tile_product import ADDED, tile_product
        from outrider.ops.compiled.tile_rows import scratch_bytes

        self.inputs, self.outputs, self.is_dense = inputs, outputs, not num_blocks
        self._tiles, self._order, self._storage = tiles.contiguous(), order.contiguous(), storage
        self._weight = self._tiles.data_ptr(), num_blocks, inputs, outputs
        self._order_fields = self._order.data_ptr(), len(order)
        self._function, self._added = int(tile_product.address), ADDED
        self._scratch_bytes, self._run_products = scratch_bytes, run_products

    def fields(self, norm: torch.Tensor) -> tuple[int, ...]:
        """What compiled functions read of the weight, and of the norm before it (`run`)."""
        return (*self._weight, norm.data_ptr(), norm.shape[0] - 1, *self._order_fields)

    def scratch_bytes(self, rows: int) -> int:
        """The memory that a product of so many rows needs besides its operands."""
        return self._scratch_bytes(
            rows=rows,
            inputs=self.inputs,
            is_dense=self.is_dense,
            threads=torch.get_num_threads(),
        )

    def multiply(self, x: torch.Tensor, out: torch.Tensor, *, is_added: bool) -> None:
        """x W^T, which is written to the output or added to it; both are contiguous."""
        if x.shape[0]:
            self.run(self._function, x, out, NO_NORM, self._added if is_added else 0)

    def run(
        self,
        function: int,  # address of one in `tile_product`
        x: torch.Tensor,  # [rows, inputs] contiguous
        out: torch.Tensor,  # [rows, columns] contiguous
        norm: torch.Tensor,  # [inputs + 1] weight of a norm and its eps; [1] for none
        *own: int,  # the function's own fields
    ) -> "ctypes.Array[ctypes.c_int64]":
        """Run a compiled function over the weight, on all threads; returns what it got and wrote.

        There must be rows.
        """
        rows = x.shape[0]
        assert x.shape[1] == self.inputs
        assert_floats(x, out, norm)
        scratch = torch.empty(self.scratch_bytes(rows), dtype=torch.uint8)
        operands = rows, x.data_ptr(), scratch.data_ptr(), out.data_ptr()
        arguments = (*self.fields(norm), *operands, *own)
        return self._run_products(function, arguments, num=rows * self.inputs * self.outputs)


def assert_floats(*tensors: torch.Tensor) -> None:
    """Compiled functions read and write memory as these are, without any check."""
    assert all(each.dtype == torch.float32 and each.is_contiguous() for each in tensors)
