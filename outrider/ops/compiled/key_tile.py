"""Scores of keys and sums of values for a few query heads that read the same keys.

A query has its sums in registers, in a fixed order: channels in 16 parts, then these in halves, and
values in the order of keys. So the bits of a query do not depend on the queries beside it.
"""

from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from outrider.ops.compiled.kernel_cache import callback, compiled
from outrider.ops.compiled.vector_ir import (
    FLOAT,
    FLOATS,
    INT32,
    INT64,
    NO_FLOATS,
    WIDTH,
    load,
    multiply_add,
    number,
    prefetch,
    splat,
)

# Vectors of a head: how many queries have room in the registers beside a key.
MOST_QUERIES = {1: 4, 2: 4, 4: 4, 8: 2}
_KEYS_AHEAD = 32  # that are prefetched (docs/lab/log.md)
_CASE = 16  # more than any number of queries
_SIGNATURE = types.void(*[types.intp] * 9)
_NAMES = "outrider_score_keys", "outrider_sum_values"


@compiled()
def most_queries(head_dim: int) -> int:
    """How many heads `score_keys` and `sum_values` take at once; 0 if they have no loop for it."""
    if head_dim == 128:
        return 2
    return 4 if head_dim in (16, 32, 64) else 0


@intrinsic  # type: ignore[untyped-decorator]
def _score_loops(
    context: Any,
    head_dim: Any,
    queries: Any,  # how many
    query: Any,  # address of float32 [queries, head_dim]
    keys: Any,  # address of the key in slot 0, of this head
    slot_bytes: Any,
    slots: Any,  # address of int64 [num]
    num: Any,  # at least 1
    scores: Any,  # address of float32 [queries, stride]; element [i, num] gets the largest
    stride: Any,  # more than num
) -> Any:
    del context, head_dim, queries, query, keys, slot_bytes, slots, num, scores, stride
    return _SIGNATURE, _generate(_ScoreLoop)


@intrinsic  # type: ignore[untyped-decorator]
def _value_loops(
    context: Any,
    head_dim: Any,
    queries: Any,
    out: Any,  # address of float32 [queries, head_dim]
    values: Any,  # address of the value in slot 0, of this head
    slot_bytes: Any,
    slots: Any,
    num: Any,
    weights: Any,  # address of float32 [queries, stride]
    stride: Any,
) -> Any:
    del context, head_dim, queries, out, values, slot_bytes, slots, num, weights, stride
    return _SIGNATURE, _generate(_ValueLoop)


def _generate(kind: "type[_KeyLoop]") -> Any:
    """One loop per size of a head and number of queries; a switch chooses."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        del signature
        head_dim, queries, *operands = arguments
        end = builder.append_basic_block("end")
        chosen = builder.add(builder.mul(head_dim, number(_CASE)), queries)
        switch = builder.switch(chosen, end)
        for vectors, most in MOST_QUERIES.items():
            for num in range(1, most + 1):
                case = builder.append_basic_block("case")
                builder.position_at_end(case)
                kind(builder, vectors, num, operands).emit()
                builder.branch(end)
                switch.add_case(number(vectors * WIDTH * _CASE + num), case)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return generate


class _KeyLoop:
    """Emits a loop over slots that carries some values from key to key."""

    def __init__(
        self, builder: ir.IRBuilder, vectors: int, queries: int, operands: list[ir.Value]
    ) -> None:
        self._builder, self._vectors, self._queries = builder, vectors, queries
        self._query, self._stored, self._slot_bytes, self._slots = operands[:4]
        self._num, self._weights, self._stride = operands[4:]

    def emit(self) -> None:
        builder, first = self._builder, self._begin()
        before = builder.block
        loop, done = builder.append_basic_block("keys"), builder.append_basic_block("done")
        builder.branch(loop)
        builder.position_at_end(loop)
        index = builder.phi(INT64)
        index.add_incoming(number(0), before)
        carried = [builder.phi(value.type) for value in first]
        for phi, value in zip(carried, first, strict=True):
            phi.add_incoming(value, before)
        address = self._address_of(index)
        self._prefetch(index)
        vectors = [self._vector(address, place) for place in range(self._vectors)]
        new = self._next(index, vectors, carried)
        following = builder.add(index, number(1))
        index.add_incoming(following, builder.block)
        for phi, value in zip(carried, new, strict=True):
            phi.add_incoming(value, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, self._num), loop, done)
        builder.position_at_end(done)
        self._end(new)

    def _address_of(self, index: ir.Value) -> ir.Value:
        slot = load(self._builder, self._at(self._slots, index, 8), INT64, align=8)
        return self._builder.add(self._stored, self._builder.mul(slot, self._slot_bytes))

    def _prefetch(self, index: ir.Value) -> None:
        """Ask for a later one: those of a head lie apart, so that a core does not foresee them."""
        builder, last = self._builder, self._builder.sub(self._num, number(1))
        ahead = builder.add(index, number(_KEYS_AHEAD))
        ahead = builder.select(builder.icmp_signed("<", ahead, last), ahead, last)
        address = self._address_of(ahead)
        for place in range(self._vectors):
            prefetch(builder, builder.add(address, number(4 * WIDTH * place)))

    def _begin(self) -> list[ir.Value]:
        """Values before the first key."""
        raise NotImplementedError

    def _next(
        self, index: ir.Value, vectors: list[ir.Value], carried: list[ir.Value]
    ) -> list[ir.Value]:
        """Values after one more key, or value, that has these vectors."""
        raise NotImplementedError

    def _end(self, carried: list[ir.Value]) -> None:
        raise NotImplementedError

    def _at(self, first: ir.Value, place: ir.Value, size: int) -> ir.Value:
        return self._builder.add(first, self._builder.mul(place, number(size)))

    def _weight_at(self, query: int, place: ir.Value) -> ir.Value:
        row = self._builder.mul(number(query), self._stride)
        address = self._at(self._weights, self._builder.add(row, place), 4)
        return self._builder.inttoptr(address, FLOAT.as_pointer())

    def _vector(self, address: ir.Value, place: int) -> ir.Value:
        return load(
            self._builder, self._builder.add(address, number(4 * WIDTH * place)), FLOATS, align=4
        )


class _ScoreLoop(_KeyLoop):
    """Carries the largest score of every query."""

    def _begin(self) -> list[ir.Value]:
        size = 4 * WIDTH * self._vectors
        self._rows = [
            [
                self._vector(self._builder.add(self._query, number(size * query)), place)
                for place in range(self._vectors)
            ]
            for query in range(self._queries)
        ]
        return [ir.Constant(FLOAT, float("-inf"))] * self._queries

    def _next(
        self, index: ir.Value, vectors: list[ir.Value], carried: list[ir.Value]
    ) -> list[ir.Value]:
        builder, largest = self._builder, []
        for query, (row, before) in enumerate(zip(self._rows, carried, strict=True)):
            parts = builder.fmul(row[0], vectors[0])
            for own, key in zip(row[1:], vectors[1:], strict=True):
                parts = multiply_add(builder, own, key, parts)
            score = self._sum(parts)
            builder.store(score, self._weight_at(query, index), align=4)
            is_larger = builder.fcmp_ordered(">", score, before)
            largest.append(builder.select(is_larger, score, before))
        return largest

    def _sum(self, parts: ir.Value) -> ir.Value:
        """The sum of 16 numbers: the halves are added, then the halves of that, ..."""
        builder, width = self._builder, WIDTH
        while width > 1:
            width //= 2
            undefined = ir.Constant(parts.type, ir.Undefined)
            halves = [
                ir.Constant(ir.VectorType(INT32, width), list(range(first, first + width)))
                for first in (0, width)
            ]
            low, high = (builder.shuffle_vector(parts, undefined, mask) for mask in halves)
            parts = builder.fadd(low, high)
        return builder.extract_element(parts, ir.Constant(INT32, 0))

    def _end(self, carried: list[ir.Value]) -> None:
        for query, value in enumerate(carried):
            self._builder.store(value, self._weight_at(query, self._num), align=4)


class _ValueLoop(_KeyLoop):
    """Carries the weighted sum of values of every query."""

    def _begin(self) -> list[ir.Value]:
        return [NO_FLOATS] * (self._queries * self._vectors)

    def _next(
        self, index: ir.Value, vectors: list[ir.Value], carried: list[ir.Value]
    ) -> list[ir.Value]:
        builder, added = self._builder, []
        for query in range(self._queries):
            weight = splat(builder, builder.load(self._weight_at(query, index), align=4), FLOATS)
            before = carried[query * self._vectors : (query + 1) * self._vectors]
            added += [
                multiply_add(builder, weight, value, total)
                for value, total in zip(vectors, before, strict=True)
            ]
        return added

    def _end(self, carried: list[ir.Value]) -> None:
        for place, value in enumerate(carried):
            address = self._builder.add(self._query, number(4 * WIDTH * place))
            self._builder.store(
                value, self._builder.inttoptr(address, FLOATS.as_pointer()), align=4
            )


@callback(_SIGNATURE)
def _score_keys(
    head_dim: int,
    queries: int,
    query: int,
    keys: int,
    slot_bytes: int,
    slots: int,
    num: int,
    scores: int,
    stride: int,
) -> None:
    _score_loops(head_dim, queries, query, keys, slot_bytes, slots, num, scores, stride)


@callback(_SIGNATURE)
def _sum_values(
    head_dim: int,
    queries: int,
    out: int,
    values: int,
    slot_bytes: int,
    slots: int,
    num: int,
    weights: int,
    stride: int,
) -> None:
    _value_loops(head_dim, queries, out, values, slot_bytes, slots, num, weights, stride)


# Callers get symbols: numba would compile all loops again inside of each of them.
llvm.add_symbol(_NAMES[0], _score_keys.address)
llvm.add_symbol(_NAMES[1], _sum_values.address)
score_keys, sum_values = (types.ExternalFunction(name, _SIGNATURE) for name in _NAMES)
