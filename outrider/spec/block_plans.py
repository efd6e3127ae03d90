"""The plans of a block-parallel draft model: blocks of slots, and the catch-up."""

from dataclasses import dataclass, replace

import torch

from outrider.ops.tree.plan_rows import ChunkRows, DecodeRows
from outrider.spec.draft_plans import NO_CHUNKS, no_chunks, tree_of_width
from outrider.step.arena import Arena
from outrider.step.attention_backend import AttentionPlanner
from outrider.step.plan import DraftPlan, StepPlan
from outrider.step.planner import Binder, NoDraftBinder
from outrider.step.shape import StepShape
from outrider.wire.draft_budget import Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlans(DraftPlan):
    """A block-parallel draft model's part of a step's plan."""

    block: StepPlan  # [rows, slots]
    catch_up: StepPlan  # [rows, most_emitted] and the chunks: the tokens that the target decided


class BlockPlanner:
    """Owns the memory of both plans. They share it, since they run one after another."""

    def __init__(
        self, attention: AttentionPlanner, largest: StepShape, *, slots: int, device: torch.device
    ) -> None:
        self._slots = slots
        self._arena = Arena(device)
        tree = replace(largest.tree, nodes=max(largest.tree.nodes, slots))
        self._binder = Binder(self._arena, attention, replace(largest, tree=tree))
        self._arena.reserve("catch_up.lengths", largest.rows, torch.int64)
        self._arena.reserve("catch_up.tokens", largest.chunk.tokens, torch.int64)

    def bind(self, shape: StepShape, decode: DecodeRows, chunk: ChunkRows) -> BlockPlans:
        """The plans that go with a step of this shape."""
        shape = replace(shape, ragged=0)  # all rows of a draft plan have as many nodes
        # The slots of a block read each other, so they are never a chain.
        slots = Budget(steps=1, topk=self._slots, nodes=self._slots)
        block = replace(shape, tree=slots, chunk=NO_CHUNKS)
        catch_up = replace(shape, tree=tree_of_width(shape.tree.most_emitted))
        tokens = self._arena.view("catch_up.tokens", shape.chunk.tokens)
        lengths = self._arena.view("catch_up.lengths", shape.rows)
        return BlockPlans(
            block=self._binder.make(block, decode, no_chunks(chunk), NoDraftBinder()),
            catch_up=self._binder.make(
                catch_up,
                replace(decode, lengths=lengths),
                replace(chunk, tokens=tokens),
                NoDraftBinder(),
            ),
        )
