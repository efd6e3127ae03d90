"""The product of a few rows with one or two tiles of a dense weight, in float32.

A tile has 16 outputs. The numbers of the tile for one input lie side by side.

Every sum is in the order of its inputs, by multiply-adds on one register. So the bits of an output
depend on its own row and column alone.
"""

from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from outrider.ops.compiled.kernel_cache import callback
from outrider.ops.compiled.vector_ir import (
    FLOAT,
    FLOATS,
    HALVES,
    INT16S,
    INT64,
    INTS,
    NO_FLOATS,
    WIDTH,
    constant,
    has_avx512,
    load,
    multiply_add,
    number,
    prefetch,
    splat,
)

FLOAT32, BFLOAT16, FLOAT16 = range(3)  # how a weight is stored
# Rows and tiles at once. Their sums fit into registers: 32 of 16 numbers, or 16 of 8 numbers.
MOST_ROWS, MOST_TILES = (8, 2) if has_avx512() else (4, 1)
SUM_ROWS = 8  # that there is room for in the sums of a tile
_ROW_GROUPS = tuple(rows for rows in (1, 2, 4, 8) if rows <= MOST_ROWS)
_AHEAD_BYTES = 2048  # of weights that are prefetched (docs/lab/log.md)
_VECTOR_BYTES = 4 * WIDTH
_SIGNATURE = types.void(*[types.intp] * 10)
_SYMBOL = "outrider_multiply_dense"


@intrinsic  # type: ignore[untyped-decorator]
def _dense_loops(
    context: Any,
    kind: Any,  # of the weight
    num_rows: Any,  # one of _ROW_GROUPS
    num_tiles: Any,  # at most MOST_TILES
    x: Any,  # address of the first row
    x_bytes: Any,  # from row to row
    weight: Any,  # address of the first tile's numbers for the first input
    input_bytes: Any,  # from input to input
    tile_bytes: Any,  # from tile to tile
    num_inputs: Any,  # at least 1
    out: Any,  # address of float32 [num_tiles, SUM_ROWS, 16]
) -> Any:
    """One loop per kind and number of rows and tiles; a switch chooses."""
    del context, kind, num_rows, num_tiles, x, x_bytes
    del weight, input_bytes, tile_bytes, num_inputs, out

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        del signature
        kind, num_rows, num_tiles, *operands = arguments
        end = builder.append_basic_block("end")
        sizes = builder.add(builder.mul(kind, number(MOST_ROWS + 1)), num_rows)
        chosen = builder.add(builder.mul(sizes, number(MOST_TILES + 1)), num_tiles)
        switch = builder.switch(chosen, end)
        for each in (FLOAT32, BFLOAT16, FLOAT16):
            for rows in _ROW_GROUPS:
                for tiles in range(1, MOST_TILES + 1):
                    case = builder.append_basic_block("case")
                    builder.position_at_end(case)
                    _DenseLoop(builder, each, (rows, tiles), operands).emit()
                    builder.branch(end)
                    value = (each * (MOST_ROWS + 1) + rows) * (MOST_TILES + 1) + tiles
                    switch.add_case(number(value), case)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return _SIGNATURE, generate


class _DenseLoop:
    """Emits the loop over inputs, with one vector of 16 sums per row and tile."""

    def __init__(
        self, builder: ir.IRBuilder, kind: int, sizes: tuple[int, int], operands: list[ir.Value]
    ) -> None:
        self._builder, self._kind = builder, kind
        self._rows, self._tiles = sizes
        self._x, self._x_bytes, self._weight, self._input_bytes, self._tile_bytes = operands[:5]
        self._num_inputs, self._out = operands[5:]

    def emit(self) -> None:
        builder, before = self._builder, self._builder.block
        loop, done = builder.append_basic_block("inputs"), builder.append_basic_block("done")
        builder.branch(loop)
        builder.position_at_end(loop)
        index = builder.phi(INT64)
        totals = [builder.phi(FLOATS) for _ in range(self._rows * self._tiles)]
        index.add_incoming(number(0), before)
        for total in totals:
            total.add_incoming(NO_FLOATS, before)
        added = self._add_input(index, totals)
        following = builder.add(index, number(1))
        index.add_incoming(following, loop)
        for total, new in zip(totals, added, strict=True):
            total.add_incoming(new, loop)
        builder.cbranch(builder.icmp_signed("<", following, self._num_inputs), loop, done)
        builder.position_at_end(done)
        for place, total in enumerate(added):
            row, tile = divmod(place, self._tiles)
            offset = number((tile * SUM_ROWS + row) * _VECTOR_BYTES)
            address = builder.add(self._out, offset)
            builder.store(total, builder.inttoptr(address, FLOATS.as_pointer()), align=4)

    def _add_input(self, index: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
        builder = self._builder
        first = builder.add(self._weight, builder.mul(index, self._input_bytes))
        places = [
            builder.add(first, builder.mul(number(tile), self._tile_bytes))
            for tile in range(self._tiles)
        ]
        for place in places:
            prefetch(builder, builder.add(place, number(_AHEAD_BYTES)))
        weights = [self._columns(place) for place in places]
        added = []
        for row in range(self._rows):
            row_at = builder.add(self._x, builder.mul(number(row), self._x_bytes))
            address = builder.add(row_at, builder.mul(index, number(4)))
            value = splat(builder, load(builder, address, FLOAT, align=4), FLOATS)
            for tile, weight in enumerate(weights):
                total = totals[row * self._tiles + tile]
                added.append(multiply_add(builder, value, weight, total))
        return added

    def _columns(self, address: ir.Value) -> ir.Value:
        """16 numbers of the weight, in float32."""
        builder = self._builder
        if self._kind == FLOAT32:
            return load(builder, address, FLOATS, align=4)
        if self._kind == FLOAT16:
            return builder.fpext(load(builder, address, HALVES, align=2), FLOATS)
        bits = builder.zext(load(builder, address, INT16S, align=2), INTS)
        return builder.bitcast(builder.shl(bits, constant(16)), FLOATS)


@callback(_SIGNATURE)
def _multiply_dense(
    kind: int,
    num_rows: int,
    num_tiles: int,
    x: int,
    x_bytes: int,
    weight: int,
    input_bytes: int,
    tile_bytes: int,
    num_inputs: int,
    out: int,
) -> None:
    _dense_loops(
        kind, num_rows, num_tiles, x, x_bytes, weight, input_bytes, tile_bytes, num_inputs, out
    )


# Callers get a symbol: numba would compile all loops again inside of each of them.
llvm.add_symbol(_SYMBOL, _multiply_dense.address)
multiply_dense = types.ExternalFunction(_SYMBOL, _SIGNATURE)
