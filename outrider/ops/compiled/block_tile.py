"""The product of one tile of weight blocks with a few rows of quantised activations.

Sums of a block are integers, and exact in any order. Blocks are added in ascending order by
multiply-adds. So the bits of a row do not depend on the rows beside it.
"""

from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from outrider.ops.compiled.block_kind import BLOCK, HALF_BYTES, KINDS, TILE, BlockKind
from outrider.ops.compiled.kernel_cache import callback
from outrider.ops.compiled.vector_ir import (
    FLOAT,
    FLOATS,
    HALVES,
    INT32,
    INT64,
    INTS,
    NO_FLOATS,
    NO_INTS,
    constant,
    dot_bytes,
    load,
    multiply_add,
    number,
    splat,
)

_VECTOR_BYTES = 4 * TILE
_ALIGN = 32  # of blocks in memory
_SIGNATURE = types.void(*[types.intp] * 8)
_SYMBOL = "outrider_multiply_tile"
_MOST_ROWS = 8  # whose sums fit into registers
ROW_GROUPS = (1, 2, 4, _MOST_ROWS)


@intrinsic  # type: ignore[untyped-decorator]
def _tile_loops(
    context: Any,
    kind: Any,  # the index of a `BlockKind`
    num_rows: Any,  # one of ROW_GROUPS
    blocks: Any,  # address of the tile's first block
    codes: Any,  # address of the first row's int8 codes, [num_rows, num_blocks * 32]
    scales: Any,  # address of its float32 scales, [num_rows, num_blocks]
    sums: Any,  # address of the int32 sums of the codes of every block, [num_rows, num_blocks]
    num_blocks: Any,
    out: Any,  # address of float32 [num_rows, 16]
) -> Any:
    """One loop per kind and number of rows; a switch chooses."""
    del context, kind, num_rows, blocks, codes, scales, sums, num_blocks, out

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        del signature
        kind, num_rows, *operands = arguments
        end = builder.append_basic_block("end")
        chosen = builder.add(builder.mul(kind, number(_MOST_ROWS + 1)), num_rows)
        switch = builder.switch(chosen, end)
        for each in KINDS.values():
            for rows in ROW_GROUPS:
                switch.add_case(
                    number(each.index * (_MOST_ROWS + 1) + rows),
                    _emitted_case(builder, _TileLoop(builder, each, rows, operands), end),
                )
        builder.position_at_end(end)
        return context.get_dummy_value()

    return _SIGNATURE, generate


def _emitted_case(builder: ir.IRBuilder, loop: "_TileLoop", end: ir.Block) -> ir.Block:
    case = builder.append_basic_block("case")
    builder.position_at_end(case)
    loop.emit()
    builder.branch(end)
    return case


class _TileLoop:
    """Emits the loop over the blocks of a tile, with one vector of 16 sums per row."""

    def __init__(
        self, builder: ir.IRBuilder, kind: BlockKind, rows: int, arguments: list[ir.Value]
    ) -> None:
        self._builder, self._kind, self._rows = builder, kind, rows
        self._blocks, self._codes, self._scales, self._sums, self._num, self._out = arguments

    def emit(self) -> None:
        builder, before = self._builder, self._builder.block
        loop, done = builder.append_basic_block("blocks"), builder.append_basic_block("done")
        builder.branch(loop)
        builder.position_at_end(loop)
        index = builder.phi(INT64)
        totals = [builder.phi(FLOATS) for _ in range(self._rows)]
        index.add_incoming(number(0), before)
        for total in totals:
            total.add_incoming(NO_FLOATS, before)
        added = self._add_block(index, totals)
        following = builder.add(index, number(1))
        index.add_incoming(following, builder.block)
        for total, new in zip(totals, added, strict=True):
            total.add_incoming(new, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, self._num), loop, done)
        builder.position_at_end(done)
        for row, total in enumerate(added):
            address = builder.add(self._out, number(row * 4 * TILE))
            builder.store(total, builder.inttoptr(address, FLOATS.as_pointer()), align=4)

    def _add_block(self, index: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
        builder, kind = self._builder, self._kind
        first = builder.add(self._blocks, builder.mul(index, number(TILE * kind.block_bytes)))
        weights = self._weights(first)
        scale = self._halves(first, TILE * kind.code_bytes)
        added = []
        for row, total in enumerate(totals):
            at = builder.add(builder.mul(number(row), self._num), index)
            codes = builder.add(self._codes, builder.mul(at, number(BLOCK)))
            factor = self._per_block(self._scales, at, FLOAT)
            count = self._per_block(self._sums, at, INT32)
            product = builder.sitofp(self._dot(weights, codes, count), FLOATS)
            factors = builder.fmul(scale, splat(builder, factor, FLOATS))
            total = multiply_add(builder, product, factors, total)
            if kind.has_minimum:
                minimum = self._halves(first, TILE * (kind.code_bytes + HALF_BYTES))
                share = splat(builder, builder.fmul(factor, builder.sitofp(count, FLOAT)), FLOATS)
                total = multiply_add(builder, minimum, share, total)
            added.append(total)
        return added

    def _weights(self, first: ir.Value) -> list[ir.Value]:
        """Eight vectors of unsigned codes: of inputs 0 to 3 of all 16 outputs, 4 to 7, ..."""
        builder, num = self._builder, TILE * self._kind.code_bytes // _VECTOR_BYTES
        stored = [
            load(builder, builder.add(first, number(_VECTOR_BYTES * place)), INTS, align=_ALIGN)
            for place in range(num)
        ]
        if self._kind.bits == 8:
            return stored
        low, shift = constant(0x0F0F0F0F), constant(4)
        high = [builder.and_(builder.lshr(vector, shift), low) for vector in stored]
        return [builder.and_(vector, low) for vector in stored] + high

    def _dot(self, weights: list[ir.Value], codes: ir.Value, count: ir.Value) -> ir.Value:
        """The products of a block with a row's codes, [16] integers."""
        builder, offset = self._builder, self._kind.offset
        start = builder.mul(count, ir.Constant(INT32, -offset))
        # Two sums, because every product waits for the sum before it.
        totals = [splat(builder, start, INTS) if offset else NO_INTS, NO_INTS]
        for place, weight in enumerate(weights):
            four = load(builder, builder.add(codes, number(4 * place)), INT32, align=4)
            total = dot_bytes(builder, totals[place % 2], weight, splat(builder, four, INTS))
            totals[place % 2] = total
        return builder.add(*totals)

    def _halves(self, first: ir.Value, offset: int) -> ir.Value:
        """16 numbers that are stored in float16."""
        address = self._builder.add(first, number(offset))
        return self._builder.fpext(load(self._builder, address, HALVES, align=_ALIGN), FLOATS)

    def _per_block(self, first: ir.Value, place: ir.Value, kind: ir.Type) -> ir.Value:
        address = self._builder.add(first, self._builder.mul(place, number(4)))
        return load(self._builder, address, kind, align=4)


@callback(_SIGNATURE)
def _multiply_tile(
    kind: int,
    num_rows: int,
    blocks: int,
    codes: int,
    scales: int,
    sums: int,
    num_blocks: int,
    out: int,
) -> None:
    _tile_loops(kind, num_rows, blocks, codes, scales, sums, num_blocks, out)


# Callers get a symbol: numba would compile all loops again inside of each of them.
llvm.add_symbol(_SYMBOL, _multiply_tile.address)
multiply_tile = types.ExternalFunction(_SYMBOL, _SIGNATURE)
