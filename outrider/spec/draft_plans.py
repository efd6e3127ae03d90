"""The plans of a draft model: over the rows of the target's step, in their own memory."""

from dataclasses import dataclass, replace

import torch

from outrider.ops.tree.plan_rows import ChunkRows, DecodeRows
from outrider.step.arena import Arena
from outrider.step.attention_backend import AttentionPlanner
from outrider.step.plan import DraftPlan, StepPlan
from outrider.step.planner import Binder, NoDraftBinder
from outrider.step.shape import ChunkShape, StepShape
from outrider.wire.draft_budget import Budget

NO_CHUNKS = ChunkShape(rows=0, tokens=0, width=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftPlans(DraftPlan):
    """A draft model's part of a step's plan."""

    first: StepPlan  # [rows, 1] the last token, where a round begins with it
    level: StepPlan  # [rows, topk] one level of the tree
    catch_up: StepPlan  # [rows, most_emitted] and the chunks: the tokens that the target decided
    bonus: StepPlan  # [chunk.rows, 1] the token after each chunk, for whole models


class DraftPlanner:
    """Owns the memory of all draft plans. They share it, since they run one after another."""

    def __init__(
        self, attention: AttentionPlanner, largest: StepShape, device: torch.device
    ) -> None:
        self._arena = Arena(device)
        self._binder = Binder(self._arena, attention, _largest_of(largest))
        rows, chunk = largest.rows, largest.chunk
        sizes = {"first": rows, "level": rows, "catch_up": rows, "bonus": chunk.rows}
        for name, size in sizes.items():
            self._arena.reserve(f"{name}.lengths", size, torch.int64)
        self._arena.reserve("catch_up.tokens", chunk.tokens, torch.int64)

    def bind(self, shape: StepShape, decode: DecodeRows, chunk: ChunkRows) -> DraftPlans:
        """The plans that go with a step of this shape."""
        tokens = self._arena.view("catch_up.tokens", shape.chunk.tokens)
        shape = replace(shape, ragged=0)  # all rows of a draft plan have as many nodes
        topk = shape.tree.topk  # branches of one level are never a chain
        first = replace(shape, tree=tree_of_width(1), chunk=NO_CHUNKS)
        level = replace(shape, tree=Budget(steps=1, topk=topk, nodes=topk), chunk=NO_CHUNKS)
        bonus = replace(shape, rows=shape.chunk.rows, tree=tree_of_width(1), chunk=NO_CHUNKS)
        catch_up = replace(shape, tree=tree_of_width(shape.tree.most_emitted))
        none = no_chunks(chunk)
        return DraftPlans(
            first=self._make("first", first, decode, decode.rows, none),
            level=self._make("level", level, decode, decode.rows, none),
            catch_up=self._make(
                "catch_up", catch_up, decode, decode.rows, replace(chunk, tokens=tokens)
            ),
            bonus=self._make("bonus", bonus, decode, chunk.rows, none),
        )

    def _make(
        self,
        name: str,
        shape: StepShape,
        decode: DecodeRows,
        rows: torch.Tensor,
        chunk: ChunkRows,
    ) -> StepPlan:
        lengths = self._arena.view(f"{name}.lengths", shape.rows)
        decode_rows = DecodeRows(rows=rows, lengths=lengths, budgets=decode.budgets)
        return self._binder.make(shape, decode_rows, chunk, NoDraftBinder())


def tree_of_width(nodes: int) -> Budget:
    """A chain of so many nodes that is not drafted step by step."""
    return Budget(steps=1, topk=1, nodes=nodes)


def _largest_of(shape: StepShape) -> StepShape:
    """A shape with room for all of these plans."""
    nodes = max(shape.tree.nodes, shape.tree.topk)
    return replace(
        shape, rows=max(shape.rows, shape.chunk.rows), tree=replace(shape.tree, nodes=nodes)
    )


def no_chunks(chunk: ChunkRows) -> ChunkRows:
    """Chunks of no rows, as views."""
    return ChunkRows(
        rows=chunk.rows[:0],
        starts=chunk.starts[:0],
        counts=chunk.counts[:0],
        followers=chunk.followers[:0],
        owners=chunk.owners[:0],
        tokens=chunk.tokens[:0],
    )
