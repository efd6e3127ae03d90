"""The product of one tile of weight blocks with a few rows of quantised activations.

Sums of a block are integers, and exact in any order. Blocks are added in ascending order by
multiply-adds. So the bits of a row do not depend on the rows beside it.
"""

from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from outrider.ops.compiled.block_kind import (
    BLOCK,
    FLOAT_BYTES,
    GROUP_KINDS,
    HALF_BYTES,
    KINDS,
    TILE,
    BlockKind,
)
from outrider.ops.compiled.kernel_cache import callback
from outrider.ops.compiled.vector_ir import (
    FLOAT,
    FLOATS,
    HALVES,
    INT8S,
    INT16S,
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
    prefetch,
    splat,
)

_VECTOR_BYTES = 4 * TILE
_AHEAD_BYTES = 8192  # of weights that are prefetched (docs/lab/log.md)
_LINE_BYTES = 64  # of a cache line
_ALIGN = 32  # of blocks in memory
_NUM_NIBBLES = TILE * BLOCK // 2 // _VECTOR_BYTES  # vectors of low halves of codes
_NUM_OPERANDS = 7  # of a loop
_SIGNATURE = types.void(*[types.intp] * (2 + _NUM_OPERANDS))
_SYMBOL = "outrider_multiply_tile"
_MOST_ROWS = 8  # whose sums fit into registers
ROW_GROUPS = (1, 2, 4, _MOST_ROWS)


@intrinsic  # type: ignore[untyped-decorator]
def _tile_loops(
    context: Any,
    kind: Any,  # the index of a `BlockKind`
    num_rows: Any,  # one of ROW_GROUPS
    shift: Any,  # 1 << shift blocks share a scale, in kinds that do not say it
    blocks: Any,  # address of the tile's first block
    codes: Any,  # address of the first row's int8 codes, [num_rows, num_blocks * 32]
    scales: Any,  # address of its float32 scales, [num_rows, num_blocks, 2] as `quantise_row` has
    sums: Any,  # address of its int32 sums, likewise
    num_blocks: Any,
    out: Any,  # address of float32 [num_rows, 16]
) -> Any:
    """One function per kind and number of rows; a switch chooses."""
    del context, kind, num_rows, shift, blocks, codes, scales, sums, num_blocks, out

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        del signature
        kind, num_rows, *operands = arguments
        end = builder.append_basic_block("end")
        chosen = builder.add(builder.mul(kind, number(_MOST_ROWS + 1)), num_rows)
        switch = builder.switch(chosen, end)
        for each in (*KINDS.values(), *GROUP_KINDS.values()):
            for rows in ROW_GROUPS:
                case = builder.append_basic_block("case")
                switch.add_case(number(each.index * (_MOST_ROWS + 1) + rows), case)
                builder.position_at_end(case)
                builder.call(_loop_function(builder.module, each, rows), operands)
                builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return _SIGNATURE, generate


def _loop_function(module: ir.Module, kind: BlockKind, rows: int) -> ir.Function:
    """The loop as a function of its own: among many loops, LLVM keeps sums in memory."""
    kinds = ir.FunctionType(ir.VoidType(), [INT64] * _NUM_OPERANDS)
    function = ir.Function(module, kinds, f"multiply_{kind.index}_{rows}")
    function.linkage = "internal"
    function.attributes.add("noinline")
    builder = ir.IRBuilder(function.append_basic_block())
    _TileLoop(builder, kind, rows, list(function.args)).emit()
    builder.ret_void()
    return function


class _TileLoop:
    """Emits the loop over the blocks of a tile, with one vector of 16 sums per row."""

    def __init__(
        self, builder: ir.IRBuilder, kind: BlockKind, rows: int, arguments: list[ir.Value]
    ) -> None:
        self._builder, self._kind, self._rows = builder, kind, rows
        self._shift, self._blocks, *activations, self._num, self._out = arguments
        self._codes, self._scales, self._sums = activations

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
        first, head = self._places(index)
        self._prefetch(first)
        weights, steps = self._weights(first), self._steps(first)
        scale, zeros = self._scale_and_zeros(head)
        added = []
        for row, total in enumerate(totals):
            at = builder.add(builder.mul(number(row), self._num), index)
            codes = builder.add(self._codes, builder.mul(at, number(BLOCK)))
            factors, share = self._pair(self._scales, at, FLOAT, FLOATS)
            counts = self._pair(self._sums, at, INT32, INTS)
            product = builder.sitofp(self._product(weights, steps, zeros, codes, counts), FLOATS)
            total = multiply_add(builder, product, builder.fmul(scale, factors), total)
            if kind.has_minimum and not steps:
                total = multiply_add(builder, self._minimum(head), share, total)
            elif kind.has_minimum:
                shares = builder.sitofp(builder.mul(steps[-1], counts[0]), FLOATS)
                scaled = builder.fmul(self._minimum(head), factors)
                total = multiply_add(builder, scaled, shares, total)
            added.append(total)
        return added

    def _prefetch(self, first: ir.Value) -> None:
        """Ask for a later block: a core that multiplies several rows does not look so far ahead."""
        kind = self._kind
        num_bytes = TILE * (kind.block_bytes + kind.head_bytes // max(kind.span, 1))
        for offset in range(_AHEAD_BYTES, _AHEAD_BYTES + num_bytes, _LINE_BYTES):
            prefetch(self._builder, self._builder.add(first, number(offset)))

    def _places(self, index: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Addresses of a block, and of what its span shares, which is behind the span."""
        builder, kind = self._builder, self._kind
        shift = number(kind.span.bit_length() - 1) if kind.span else self._shift
        span = builder.lshr(index, shift)
        # Before block i there are i blocks, and the heads of all spans before its own.
        heads = self._nth(self._blocks, span, TILE * kind.head_bytes)
        following = builder.shl(builder.add(span, number(1)), shift)  # the first of the next span
        first, head = (self._nth(heads, at, TILE * kind.block_bytes) for at in (index, following))
        return first, head

    def _weights(self, first: ir.Value) -> list[ir.Value]:
        """Eight vectors of unsigned codes: of inputs 0 to 3 of all 16 outputs, 4 to 7, ..."""
        builder, num = self._builder, TILE * self._kind.code_bytes // _VECTOR_BYTES
        stored = [
            load(builder, builder.add(first, number(_VECTOR_BYTES * place)), INTS, align=_ALIGN)
            for place in range(num)
        ]
        if self._kind.bits == 8:
            return stored
        nibbles, low = stored[:_NUM_NIBBLES], constant(0x0F0F0F0F)
        high = [builder.and_(builder.lshr(vector, constant(4)), low) for vector in nibbles]
        weights = [builder.and_(vector, low) for vector in nibbles] + high
        if self._kind.bits == 4:
            return weights
        # One vector has the fifth bits of all weights; two vectors have two bits of every second.
        above, num = stored[_NUM_NIBBLES:], self._kind.bits - 4
        return [
            builder.or_(weight, self._high_bits(above[place % num], place // num * num))
            for place, weight in enumerate(weights)
        ]

    def _high_bits(self, stored: ir.Value, shift: int) -> ir.Value:
        """One or two bits from `shift` on of every byte, as bits from 4 on."""
        builder = self._builder
        mask = constant(0x10101010 if self._kind.bits == 5 else 0x30303030)
        if shift < 4:
            return builder.and_(builder.shl(stored, constant(4 - shift)), mask)
        return builder.and_(builder.lshr(stored, constant(shift - 4)), mask)

    def _steps(self, first: ir.Value) -> list[ir.Value]:
        """Vectors of the steps of all 16 outputs; those of minima are the last."""
        builder, kind = self._builder, self._kind
        vectors = []
        for place in range(kind.code_bytes, kind.block_bytes):
            address = builder.add(first, number(TILE * place))
            vectors.append(builder.sext(load(builder, address, INT8S, align=TILE), INTS))
        return vectors

    def _pair(
        self, first: ir.Value, at: ir.Value, kind: ir.Type, vector: ir.VectorType
    ) -> list[ir.Value]:
        """Two numbers of a block of activations, as vectors of equal numbers."""
        place = self._nth(first, at, 2 * 4)
        places = place, self._builder.add(place, number(4))
        numbers = [load(self._builder, each, kind, align=4) for each in places]
        return [splat(self._builder, each, vector) for each in numbers]

    def _product(
        self,
        weights: list[ir.Value],
        steps: list[ir.Value],
        zeros: ir.Value,
        codes: ir.Value,
        counts: list[ir.Value],
    ) -> ir.Value:
        """The products of a block with a row's codes, [16] integers."""
        builder, num = self._builder, self._kind.num_steps
        if num < 2:
            product = self._dot(weights, zeros, codes, counts[0])
            return builder.mul(product, steps[0]) if num else product
        half = len(weights) // 2
        behind = builder.add(codes, number(BLOCK // 2))
        left = self._dot(weights[:half], zeros, codes, counts[1])
        right = self._dot(weights[half:], zeros, behind, builder.sub(*counts))
        return builder.add(builder.mul(left, steps[0]), builder.mul(right, steps[1]))

    def _dot(
        self, weights: list[ir.Value], zeros: ir.Value, codes: ir.Value, count: ir.Value
    ) -> ir.Value:
        """The products of some vectors of weights; `count` has the sum of the row's codes there."""
        builder = self._builder
        # Two sums, because every product waits for the sum before it.
        totals = [builder.mul(count, builder.neg(zeros)), NO_INTS]
        for place, weight in enumerate(weights):
            four = load(builder, builder.add(codes, number(4 * place)), INT32, align=4)
            total = dot_bytes(builder, totals[place % 2], weight, splat(builder, four, INTS))
            totals[place % 2] = total
        return builder.add(*totals)

    def _minimum(self, head: ir.Value) -> ir.Value:
        """The minima of all 16 outputs."""
        return self._halves(head, TILE * HALF_BYTES)

    def _scale_and_zeros(self, head: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The scales of all 16 outputs, and what is subtracted from their codes, in [16] both."""
        builder, offset = self._builder, constant(self._kind.offset)
        if not self._kind.has_zeros:
            return self._halves(head, 0), offset
        scale = load(builder, head, FLOATS, align=_ALIGN)
        address = builder.add(head, number(TILE * FLOAT_BYTES))
        zeros = builder.sext(load(builder, address, INT16S, align=_ALIGN), INTS)
        return scale, builder.add(zeros, offset)

    def _halves(self, first: ir.Value, offset: int) -> ir.Value:
        """16 numbers that are stored in float16."""
        address = self._builder.add(first, number(offset))
        return self._builder.fpext(load(self._builder, address, HALVES, align=_ALIGN), FLOATS)

    def _nth(self, first: ir.Value, place: ir.Value, size: int) -> ir.Value:
        """The address of an element of `size` bytes."""
        return self._builder.add(first, self._builder.mul(place, number(size)))


@callback(_SIGNATURE)
def _multiply_tile(
    kind: int,
    num_rows: int,
    shift: int,
    blocks: int,
    codes: int,
    scales: int,
    sums: int,
    num_blocks: int,
    out: int,
) -> None:
    _tile_loops(kind, num_rows, shift, blocks, codes, scales, sums, num_blocks, out)


# Callers get a symbol: numba would compile all loops again inside of each of them.
llvm.add_symbol(_SYMBOL, _multiply_tile.address)
multiply_tile = types.ExternalFunction(_SYMBOL, _SIGNATURE)
