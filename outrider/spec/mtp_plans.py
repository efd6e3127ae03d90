"""The plan of a catch-up with MTP modules: draft windows and the chunks."""

from dataclasses import dataclass, replace

import torch

from outrider.ops.tree.plan_rows import ChunkRows, DecodeRows
from outrider.step.arena import Arena
from outrider.step.attention_backend import AttentionBackend
from outrider.step.plan import DraftPlan, StepPlan
from outrider.step.planner import Binder, NoDraftBinder
from outrider.step.shape import StepShape
from outrider.wire.draft_budget import Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftWindowPlan(DraftPlan):
    """The part of MTP modules in a step's plan."""

    catch_up: StepPlan


class WindowPlanner:
    """Owns the memory of these plans.

    Every row of the step has a draft window. That of a decode row ends with the last emitted token,
    that of a chunk row where the chunk starts. Both are decode rows of this plan, in this order.
    """

    def __init__(
        self,
        attention: AttentionBackend,
        largest: StepShape,
        *,
        num_modules: int,
        device: torch.device,
    ) -> None:
        self._num_modules = num_modules
        self._arena = Arena(device)
        widest = self._shape(largest)
        self._binder = Binder(self._arena, attention, widest)
        self._arena.reserve("windows.rows", widest.rows, torch.int64)
        self._arena.reserve("windows.lengths", widest.rows, torch.int64)
        self._arena.reserve("chunk.tokens", largest.chunk.tokens, torch.int64)

    def bind(self, shape: StepShape, decode: DecodeRows, chunk: ChunkRows) -> DraftWindowPlan:
        """The catch-up that goes with a step of this shape."""
        window_shape = self._shape(shape)
        windows = DecodeRows(
            rows=self._arena.view("windows.rows", window_shape.rows),
            lengths=self._arena.view("windows.lengths", window_shape.rows),
            budgets=decode.budgets,
        )
        tokens = self._arena.view("chunk.tokens", shape.chunk.tokens)
        chunk = replace(chunk, tokens=tokens)
        return DraftWindowPlan(
            catch_up=self._binder.make(window_shape, windows, chunk, NoDraftBinder())
        )

    def _shape(self, shape: StepShape) -> StepShape:
        """Windows have room for what a row can emit, and for what modules may run again."""
        width = max(self._num_modules, shape.tree.most_emitted)
        tree = Budget(steps=1, topk=1, nodes=width)
        return replace(shape, rows=shape.rows + shape.chunk.rows, tree=tree, ragged=0)
