"""Products on a CPU whose bits depend on one row and one column alone (`compiled.dense_product`).

Sums are in the order of their inputs, in float32. A weight can have 2 bytes per number.
"""

import torch
import torch.nn.functional as F

from outrider.ops.compiled.block_kind import TILE
from outrider.ops.compiled.why_not_compiled import why_not_compiled
from outrider.ops.graph_break import graph_break

_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def why_no_tiles() -> str:
    """Why this machine does not multiply by tiled weights; empty if it does."""
    return why_not_compiled("outrider.ops.compiled.dense_product")


class TiledWeight:
    """The weights of one or several parts. A tile has the numbers of 16 outputs, input by input."""

    def __init__(
        self,
        numbers: torch.Tensor,  # float32, bfloat16 or float16; whole tiles
        *,
        shape: tuple[int, int, int],  # parts, inputs, outputs
        strides: tuple[int, int, int],  # of the numbers: to the next part, input, and tile
    ) -> None:
        from outrider.ops.compiled.dense_product import dense_product
        from outrider.ops.compiled.thread_team import run_products

        self.shape = shape
        self.numbers = numbers
        size = numbers.element_size()
        in_bytes = (size * stride for stride in strides)
        self._fields = *shape, _KINDS[numbers.dtype], numbers.data_ptr(), *in_bytes
        self._function = int(dense_product.address)
        self._run_products = run_products

    def tile_table(self) -> torch.Tensor:  # [tiles, 3] int64
        """Kind, address and bytes from input to input of every tile of the first part."""
        kind, address, _, input_bytes, tile_bytes = self._fields[3:]
        addresses = address + tile_bytes * torch.arange(-(-self.shape[2] // TILE))
        kinds, steps = (torch.full_like(addresses, each) for each in (kind, input_bytes))
        return torch.stack([kinds, addresses, steps], dim=1)

    def multiply(
        self,
        x: torch.Tensor,  # [n, in] float32, unit stride along in
        out: torch.Tensor,  # [n, out] float32, written; unit stride along out
        *,
        is_added: bool = False,  # to the output
    ) -> None:
        """The product of one part."""
        graph_break(self._multiply, x, out, is_added)

    def multiply_parts(
        self,
        x: torch.Tensor,  # [parts, n, in] float32, unit stride along in
        out: torch.Tensor,  # [parts, n, out] float32, written; unit stride along out
    ) -> None:
        """The product of every part."""
        graph_break(self._multiply_parts, x, out)

    def multiply_groups(
        self,
        x: torch.Tensor,  # [n, in] float32, unit stride along in
        out: torch.Tensor,  # [n, out] float32, written; unit stride along out
        ends: torch.Tensor,  # [parts] int32 where the rows of each part end
    ) -> None:
        """The product of every row with the weight of its part. Rows of a part are neighbours.

        Rows behind the end of the last part stay as they are.
        """
        graph_break(self._multiply_groups, x, out, ends)

    def _multiply(self, x: torch.Tensor, out: torch.Tensor, is_added: bool) -> None:
        assert self.shape[0] == 1
        rows, x_bytes, out_bytes = len(x), 4 * x.stride(0), 4 * out.stride(0)
        self._run(x, out, rows, (rows, 0), (0, x_bytes), (0, out_bytes, is_added))

    def _multiply_parts(self, x: torch.Tensor, out: torch.Tensor) -> None:
        assert self.shape[0] == len(x) == len(out)
        (part, row, _), (out_part, out_row, _) = x.stride(), out.stride()
        rows = x.shape[1]
        places = (rows, 0), (4 * part, 4 * row), (4 * out_part, 4 * out_row, 0)
        self._run(x, out, len(x) * rows, *places)

    def _multiply_groups(self, x: torch.Tensor, out: torch.Tensor, ends: torch.Tensor) -> None:
        assert self.shape[0] == len(ends)
        rows, x_bytes, out_bytes = len(x), 4 * x.stride(0), 4 * out.stride(0)
        self._run(x, out, rows, (0, ends.data_ptr()), (0, x_bytes), (0, out_bytes, 0))

    def _run(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        num_rows: int,  # of all parts
        rows: tuple[int, int],
        x_strides: tuple[int, int],
        out_fields: tuple[int, int, int],
    ) -> None:
        _, inputs, outputs = self.shape
        assert x.shape[-1] == inputs > 0
        assert out.shape[-1] == outputs
        assert x.dtype == out.dtype == torch.float32
        assert x.stride(-1) == out.stride(-1) == 1
        if num_rows:
            places = x.data_ptr(), *x_strides, out.data_ptr(), *out_fields
            num = num_rows * inputs * outputs
            self._run_products(self._function, (*self._fields, *rows, *places), num=num)


def tile_weight(weight: torch.Tensor, dtype: torch.dtype) -> TiledWeight:  # [parts, out, in]
    """A copy of the weight, tile after tile."""
    parts, outputs, inputs = weight.shape
    tiles = -(-outputs // TILE)
    numbers = torch.empty(parts, tiles, inputs, TILE, dtype=dtype)
    for part, rows in zip(numbers, weight.detach(), strict=True):
        whole = F.pad(rows, (0, 0, 0, tiles * TILE - outputs))
        part.copy_(whole.view(tiles, TILE, inputs).transpose(1, 2))
    to_part, to_tile, to_input, _ = numbers.stride()
    strides = to_part, to_input, to_tile
    return TiledWeight(numbers, shape=(parts, inputs, outputs), strides=strides)


def tile_columns(weight: torch.Tensor) -> TiledWeight:  # [parts, in, out] float32
    """A weight whose rows are read in place, if they are whole tiles that lie side by side."""
    outputs = weight.shape[2]
    if outputs % TILE:
        weight = F.pad(weight, (0, -outputs % TILE))
    elif weight.stride(2) != 1:
        weight = weight.contiguous()
    parts, inputs, _ = weight.shape
    to_part, to_input, _ = weight.stride()
    return TiledWeight(weight, shape=(parts, inputs, outputs), strides=(to_part, to_input, TILE))
