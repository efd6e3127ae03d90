"""The plans of a block-parallel draft model: blocks of slots, and the catch-up."""

from dataclasses import dataclass, replace

import torch

from outrider.models.block_model import AnyBlockModel, SlotPlans
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

    block: SlotPlans  # [rows, slots]
    catch_up: StepPlan  # [rows, most_emitted] and the chunks: the tokens that the target decided


class BlockPlanner:
    """Owns the memory of the plans. Blocks and catch-up share it, since they run one after another.
    Both plans of a block run at the same time, so the second has its own.
    """

    def __init__(
        self,
        attention: AttentionPlanner,
        largest: StepShape,
        *,
        model: AnyBlockModel,
        device: torch.device,
    ) -> None:
        block = self._block = model.block
        self._arena = Arena(device)
        most = max(largest.tree.nodes, block.slots(largest.tree.steps))
        tree = replace(largest.tree, nodes=most)
        self._binder = Binder(self._arena, attention, replace(largest, tree=tree))
        self._causal: Binder | None = None  # of a mixed model
        if model.is_mixed:
            self._causal = Binder(
                Arena(device), attention, replace(largest, tree=tree, chunk=NO_CHUNKS)
            )
        self._arena.reserve("block.lengths", largest.rows, torch.int64)
        self._arena.reserve("catch_up.lengths", largest.rows, torch.int64)
        self._arena.reserve("catch_up.tokens", largest.chunk.tokens, torch.int64)

    def bind(self, shape: StepShape, decode: DecodeRows, chunk: ChunkRows) -> BlockPlans:
        """The plans that go with a step of this shape."""
        shape = replace(shape, ragged=0)  # all rows of a draft plan have as many nodes
        # The slots of a block read each other, so they are never a chain.
        slots = max(self._block.slots(shape.tree.steps), 1)
        block = replace(shape, tree=Budget(steps=1, topk=slots, nodes=slots), chunk=NO_CHUNKS)
        starts = self._arena.view("block.lengths", shape.rows)
        block_rows = replace(decode, lengths=starts) if self._block.lookahead else decode
        catch_up = replace(shape, tree=tree_of_width(shape.tree.most_emitted))
        tokens = self._arena.view("catch_up.tokens", shape.chunk.tokens)
        lengths = self._arena.view("catch_up.lengths", shape.rows)
        return BlockPlans(
            block=self._slot_plans(block, block_rows, no_chunks(chunk)),
            catch_up=self._binder.make(
                catch_up,
                replace(decode, lengths=lengths),
                replace(chunk, tokens=tokens),
                NoDraftBinder(),
            ),
        )

    def _slot_plans(self, shape: StepShape, decode: DecodeRows, none: ChunkRows) -> SlotPlans:
        plan = self._binder.make(shape, decode, none, NoDraftBinder())
        if self._causal is None:
            return SlotPlans(plan=plan, causal=plan)
        return SlotPlans(plan=plan, causal=self._causal.make(shape, decode, none, NoDraftBinder()))
