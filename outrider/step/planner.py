"""The only maker of plans: fit pads, bind makes views once per shape, stage sends a batch down."""

from collections.abc import Iterator

import numpy as np
import torch

from outrider.attention.protocol import AttentionBackend
from outrider.memory.arena import Arena
from outrider.plan.plan import ChunkRows, Queries, Sampled, StepPlan, UniformRows
from outrider.plan.shape import StepShape, Warps
from outrider.step.buckets import Buckets
from outrider.wire.batch import ScheduledBatch

# Plans are a few dozen views each. Exact shapes differ from step to step, so old ones are dropped.
MAX_PLANS = 1024


class Planner:
    """Owns the arena and the plan of every shape seen. Equal shapes share addresses."""

    def __init__(
        self, *, arena: Arena, attention: AttentionBackend, buckets: Buckets, largest: StepShape
    ) -> None:
        self._arena = arena
        self._attention = attention
        self._buckets = buckets
        self._plans: dict[StepShape, StepPlan] = {}
        self._reserve(largest)

    def plan(self, batch: ScheduledBatch, *, nodes: int, warps: Warps) -> StepPlan:
        """The plan this batch runs on, with the host's part of it written."""
        plan = self.bind(self._buckets.fit(batch, nodes=nodes, warps=warps))
        self._stage(batch, plan)
        return plan

    def bind(self, shape: StepShape) -> StepPlan:
        """The plan of a shape: made at first sight, the same object ever after."""
        if shape not in self._plans:
            if len(self._plans) >= MAX_PLANS:
                self._plans.pop(next(iter(self._plans)))
            self._plans[shape] = self._make(shape)
        return self._plans[shape]

    def _reserve(self, largest: StepShape) -> None:
        arena = self._arena
        arena.reserve("inputs", sum(_input_sizes(largest)), torch.int64)
        arena.reserve("lengths", largest.rows, torch.int64)
        for name in ("tokens", "positions", "slots"):
            arena.reserve(f"queries.{name}", largest.num_query, torch.int64)
        for name in ("index", "rows", "positions"):
            arena.reserve(f"sampled.{name}", largest.num_sampled, torch.int64)
        self._attention.reserve(arena, largest)

    def _make(self, shape: StepShape) -> StepPlan:
        arena, query, sampled = self._arena, shape.num_query, shape.num_sampled
        uniform_rows, *chunk_inputs = self._inputs(shape)
        return StepPlan(
            shape=shape,
            queries=Queries(
                tokens=arena.view("queries.tokens", query),
                positions=arena.view("queries.positions", query),
                slots=arena.view("queries.slots", query),
            ),
            uniform=UniformRows(rows=uniform_rows, lengths=arena.view("lengths", shape.rows)),
            chunk=_chunk_rows(*chunk_inputs),
            sampled=Sampled(
                index=arena.view("sampled.index", sampled),
                rows=arena.view("sampled.rows", sampled),
                positions=arena.view("sampled.positions", sampled),
            ),
            attention=self._attention.bind(arena, shape),
        )

    def _inputs(self, shape: StepShape) -> tuple[torch.Tensor, ...]:
        """The packed host inputs, cut into their parts."""
        sizes = _input_sizes(shape)
        return torch.split(self._arena.view("inputs", sum(sizes)), sizes)

    def _stage(self, batch: ScheduledBatch, plan: StepPlan) -> None:
        """Write all host inputs, padding included, in one copy."""
        packed = np.concatenate(list(_pack(batch, plan.shape)))
        inputs = self._arena.view("inputs", packed.size)
        inputs.copy_(torch.from_numpy(packed), non_blocking=True)


def _chunk_rows(
    rows: torch.Tensor,
    starts: torch.Tensor,
    counts: torch.Tensor,
    is_last: torch.Tensor,
    owners: torch.Tensor,
    tokens: torch.Tensor,
) -> ChunkRows:
    """Name the packed inputs of the chunks, in the order of `_input_sizes`."""
    return ChunkRows(
        rows=rows, starts=starts, counts=counts, is_last=is_last, owners=owners, tokens=tokens
    )


def _input_sizes(shape: StepShape) -> list[int]:
    """Uniform rows; chunk rows, starts, counts, is_last; owners and tokens of the chunk tokens."""
    chunk = shape.chunk
    return [shape.rows, *[chunk.rows] * 4, chunk.tokens, chunk.tokens]


def _pack(batch: ScheduledBatch, shape: StepShape) -> Iterator[np.ndarray]:
    """The parts named by `_input_sizes`, each padded to its size."""
    chunks = batch.chunks
    counts = [len(chunk.tokens) for chunk in chunks]
    padding = shape.chunk.tokens - sum(counts)
    if padding:
        counts.append(padding)
    yield _padded([decode.row for decode in batch.decodes], shape.rows)
    yield _padded([chunk.row for chunk in chunks], shape.chunk.rows)
    yield _padded([chunk.start for chunk in chunks], shape.chunk.rows)
    yield _padded(counts, shape.chunk.rows)
    yield _padded([int(chunk.is_last) for chunk in chunks], shape.chunk.rows)
    yield np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    yield _padded([token for chunk in chunks for token in chunk.tokens], shape.chunk.tokens)


def _padded(values: list[int], size: int) -> np.ndarray:
    out = np.zeros(size, dtype=np.int64)
    out[: len(values)] = values
    return out
