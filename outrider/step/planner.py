"""Makes all plans: fit pads, bind makes views once per shape, stage uploads a batch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch

from outrider.ops.tree.plan_rows import ChunkRows, DecodeRows, Queries, Sampled
from outrider.step.arena import Arena
from outrider.step.attention_backend import AttentionPlanner
from outrider.step.buckets import Buckets, has_room_for_padding
from outrider.step.host_copy import pinned_for
from outrider.step.input_embeds import NO_INPUT_EMBEDS, EmbedsBuffer, InputEmbeds
from outrider.step.plan import DraftPlan, NoDraftPlan, StepPlan
from outrider.step.rotary_axes import NO_AXES, NUM_AXES, RotaryAxes, chunk_shifts
from outrider.step.row_table import RowTable
from outrider.step.shape import SamplingFlags, StepShape
from outrider.step.step_sizes import StepSizes, sizes_of
from outrider.wire.scheduled_batch import EMPTY_BATCH, ScheduledBatch, ScheduledChunk

# A plan is a few dozen views. Exact shapes differ from step to step, so old plans are dropped.
MAX_PLANS = 1024


class DraftBinder(Protocol):
    """Makes the drafter's part of every plan."""

    def bind(self, shape: StepShape, decode: DecodeRows, chunk: ChunkRows) -> DraftPlan: ...


class NoDraftBinder:
    """For plans that no drafter reads."""

    def bind(self, shape: StepShape, decode: DecodeRows, chunk: ChunkRows) -> DraftPlan:
        del shape, decode, chunk
        return NoDraftPlan()


class Binder:
    """Makes the plans of one model, target or draft, from views of its arena."""

    def __init__(
        self,
        arena: Arena,
        attention: AttentionPlanner,
        largest: StepShape,
        *,
        has_windows: bool = False,  # layers with a sliding window have pages of their own
    ) -> None:
        self._arena = arena
        self._attention = attention
        self._has_windows = has_windows
        for name in ("tokens", "positions", "slots", "adapters"):
            arena.reserve(f"queries.{name}", largest.num_query, torch.int64)
        arena.reserve("queries.window_slots", largest.num_query * has_windows, torch.int64)
        arena.reserve("queries.of_nodes", largest.num_nodes, torch.int64)
        for name in ("index", "rows", "positions"):
            arena.reserve(f"sampled.{name}", largest.num_sampled, torch.int64)
        attention.reserve(arena, largest)

    def make(
        self,
        shape: StepShape,
        decode: DecodeRows,
        chunk: ChunkRows,
        draft: DraftBinder,
        embeds: InputEmbeds = NO_INPUT_EMBEDS,
        axes: RotaryAxes = NO_AXES,
    ) -> StepPlan:
        """A plan of this shape over the given rows."""
        arena, query, sampled = self._arena, shape.num_query, shape.num_sampled
        return StepPlan(
            shape=shape,
            queries=Queries(
                tokens=arena.view("queries.tokens", query),
                positions=arena.view("queries.positions", query),
                slots=arena.view("queries.slots", query),
                window_slots=arena.view("queries.window_slots", query * self._has_windows),
                of_nodes=arena.view("queries.of_nodes", shape.rows, shape.nodes),
                adapters=arena.view(
                    "queries.adapters", query if shape.sampling_flags.adapters else 0
                ),
            ),
            decode=decode,
            chunk=chunk,
            sampled=Sampled(
                index=arena.view("sampled.index", sampled),
                rows=arena.view("sampled.rows", sampled),
                positions=arena.view("sampled.positions", sampled),
            ),
            attention=self._attention.bind(arena, shape),
            draft=draft.bind(shape.for_drafts(), decode, chunk),
            embeds=embeds,
            axes=axes,
        )


class Planner:
    """Owns the arena and one plan per shape. Equal shapes share addresses."""

    def __init__(
        self,
        *,
        arena: Arena,
        attention: AttentionPlanner,
        draft: DraftBinder,
        table: RowTable,
        buckets: Buckets,
        largest: StepShape,
        embeds: EmbedsBuffer | None = None,  # None: no batch will have embeddings
        has_axes: bool = False,  # rotary positions of the model have three axes
    ) -> None:
        self._has_axes = has_axes
        if has_axes:
            arena.reserve("axes.shifts", NUM_AXES * largest.num_query, torch.int64)
        self._arena = arena
        self._embeds = embeds
        self._draft = draft
        self._table = table
        self._buckets = buckets
        self._plans: dict[StepShape, StepPlan] = {}
        self._latest: StepPlan | None = None  # bound last; comparing is faster than hashing
        self._staged: tuple[object, ...] = ()  # shape and rows of the inputs on the device
        has_windows = table.window_pages.numel() > 0
        self._binder = Binder(arena, attention, largest, has_windows=has_windows)
        most_grants = table.num_entries  # every page of every row at once
        most_inputs = sum(_input_sizes(replace(largest, has_embeds=True, has_axes=has_axes)))
        arena.reserve("inputs", most_inputs + 2 * most_grants, torch.int64)
        arena.reserve("lengths", largest.rows, torch.int64)

    def plan(
        self,
        batch: ScheduledBatch,
        *,
        sampling_flags: SamplingFlags,
        sizes: StepSizes | None = None,
        cover: Callable[[StepShape], StepShape] = lambda shape: shape,
    ) -> StepPlan:
        """The plan this batch runs on. Its inputs and page grants are uploaded in one copy.

        `sizes` are those that all ranks of the step agreed on; None for the batch's own. `cover`
        may choose a larger shape than the one that fits.
        """
        fitted = self._buckets.fit(sizes or sizes_of(batch), sampling_flags=sampling_flags)
        covering = cover(fitted)
        plan = self.bind(covering if has_room_for_padding(batch, covering) else fitted)
        self._stage(batch, plan)
        return plan

    def bind(self, shape: StepShape) -> StepPlan:
        """The plan of a shape: made once, later the same object."""
        if self._latest is not None and self._latest.shape == shape:
            return self._latest
        if shape not in self._plans:
            if len(self._plans) >= MAX_PLANS:
                self._plans.pop(next(iter(self._plans)))
            self._plans[shape] = self._binder.make(shape, *self._inputs(shape))
        self._latest = self._plans[shape]
        return self._latest

    def _inputs(
        self, shape: StepShape
    ) -> tuple[DecodeRows, ChunkRows, DraftBinder, InputEmbeds, RotaryAxes]:
        """The packed host inputs by name, in the order of `_input_sizes`."""
        sizes = _input_sizes(shape)
        packed = torch.split(self._arena.view("inputs", sum(sizes)), sizes)
        decode = DecodeRows(
            rows=packed[0],
            lengths=self._arena.view("lengths", shape.rows),
            budgets=packed[1].view(3, shape.rows),
        )
        chunk = ChunkRows(
            rows=packed[2],
            starts=packed[3],
            counts=packed[4],
            followers=packed[5],
            owners=packed[6],
            tokens=packed[7],
        )
        embeds = self._input_embeds(shape, packed[8])
        return decode, chunk, self._draft, embeds, self._axes(shape, packed[9])

    def _axes(self, shape: StepShape, of_chunks: torch.Tensor) -> RotaryAxes:
        if not self._has_axes:
            return NO_AXES
        shifts = self._arena.view("axes.shifts", NUM_AXES, shape.num_query)
        return RotaryAxes(shifts=shifts, of_chunks=of_chunks.view(NUM_AXES, -1))

    def _input_embeds(self, shape: StepShape, is_embedded: torch.Tensor) -> InputEmbeds:
        if not shape.has_embeds:
            return NO_INPUT_EMBEDS
        assert self._embeds is not None, "requests with embeddings are refused"
        return self._embeds.bind(shape, is_embedded)

    def null(self, shape: StepShape) -> StepPlan:
        """The plan of a shape whose rows are all padding, for dummy runs."""
        plan = self.bind(shape)
        self._stage(EMPTY_BATCH, plan)
        return plan

    def forget(self) -> None:
        """A step failed: the inputs on the device are unknown, so the next step uploads all."""
        self._staged = ()

    def _stage(self, batch: ScheduledBatch, plan: StepPlan) -> None:
        """Upload all host inputs, padding included, and the granted pages.

        Inputs that are equal to those of the step before are not uploaded again.
        """
        inputs = (plan.shape, batch.decodes.rows, batch.decodes.budgets, batch.chunks)
        parts: list[np.ndarray] = []
        if inputs != self._staged:
            self._staged = ()  # stays empty if the copy fails
            parts += _pack(batch, plan.shape)
            if self._embeds is not None and plan.shape.has_embeds:
                self._embeds.stage(batch.chunks, plan.shape)
        grants = self._table.entries(batch.grants, batch.window_grants)
        if grants:
            parts.append(np.array(grants, dtype=np.int64))
        if parts:
            last = sum(_input_sizes(plan.shape)) + len(grants)
            sent = self._send(np.concatenate(parts), last=last)
            if grants:
                self._table.place(sent[-len(grants) :].view(2, -1))
        self._staged = inputs

    def _send(self, packed: np.ndarray, *, last: int) -> torch.Tensor:
        """Copy to the inputs that end at `last`. The host does not wait."""
        inputs = self._arena.view("inputs", last)[last - packed.size :]
        host = pinned_for(inputs.device, torch.from_numpy(packed))
        return inputs.copy_(host, non_blocking=True)


def _input_sizes(shape: StepShape) -> list[int]:
    """Decode rows, their budgets; chunk rows, starts, counts, followers; owners and tokens, and
    which tokens are embedded; shifts of their rotary positions.
    """
    chunk, embedded = shape.chunk, shape.chunk.tokens if shape.has_embeds else 0
    shifts = NUM_AXES * chunk.tokens if shape.has_axes else 0
    tokens = [chunk.tokens, chunk.tokens, embedded, shifts]
    return [shape.rows, 3 * shape.rows, *[chunk.rows] * 4, *tokens]


def _pack(batch: ScheduledBatch, shape: StepShape) -> Iterator[np.ndarray]:
    """The parts named by `_input_sizes`, each padded to its size."""
    chunks, budgets = batch.chunks, batch.decodes.budgets
    counts = [len(chunk.tokens) for chunk in chunks]
    padding = shape.chunk.tokens - sum(counts)
    if padding:  # padding tokens are a chunk of row 0
        counts.append(padding)
    yield _padded(batch.decodes.rows, shape.rows)
    yield _padded([budget.steps for budget in budgets], shape.rows)
    yield _padded([budget.topk for budget in budgets], shape.rows)
    yield _padded([budget.nodes for budget in budgets], shape.rows)
    yield _padded([chunk.row for chunk in chunks], shape.chunk.rows)
    yield _padded([chunk.start for chunk in chunks], shape.chunk.rows)
    yield _padded(counts, shape.chunk.rows)
    yield _padded([chunk.follower for chunk in chunks], shape.chunk.rows)
    yield np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    yield _padded([token for chunk in chunks for token in chunk.tokens], shape.chunk.tokens)
    if shape.has_embeds:
        yield _embedded(chunks, shape.chunk.tokens)
    if shape.has_axes:
        yield chunk_shifts(chunks, shape.chunk.tokens)


def _embedded(chunks: Sequence[ScheduledChunk], size: int) -> np.ndarray:
    out, at = np.zeros(size, dtype=np.int64), 0
    for chunk in chunks:
        for span in chunk.spans:
            out[at + span.first : at + span.stop] = 1
        at += len(chunk.tokens)
    return out


def _padded(values: Sequence[int], size: int) -> np.ndarray:
    out = np.zeros(size, dtype=np.int64)
    out[: len(values)] = values
    return out
