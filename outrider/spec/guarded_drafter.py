"""Guards against a drafter that fails: its rows continue with plain decoding."""

import logging
from collections.abc import Sequence

import torch

from outrider.ops.graph_break import is_capturing
from outrider.ops.tree.chain import chain
from outrider.ops.tree.draft_tree import DraftTree, StepOutcome
from outrider.ops.tree.plan_rows import ChunkRows, DecodeRows
from outrider.spec.drafter import Drafter, WrappedDrafter
from outrider.step.plan import DraftPlan, NoDraftPlan, StepPlan
from outrider.step.row_table import RowTable
from outrider.step.shape import StepShape
from outrider.wire.scheduled_batch import FinishedText, RowAdmission

_log = logging.getLogger(__name__)


class GuardedDrafter(WrappedDrafter):
    """Owns a drafter. After the drafter raises, every draft is absent.

    Nothing has to be undone: a proposal writes only scratch memory, and the tables of a broken
    drafter are never read again.
    """

    def __init__(self, drafter: Drafter, *, is_alone: bool = True) -> None:
        super().__init__(drafter)
        self._is_alone = is_alone  # no other rank drafts the same rows
        self.is_broken = False

    def bind(self, shape: StepShape, decode: DecodeRows, chunk: ChunkRows) -> DraftPlan:
        if not self.is_broken:
            try:
                return self._drafter.bind(shape, decode, chunk)
            except Exception:
                self._give_up("planning")
        return NoDraftPlan()

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        if self.is_broken:
            return
        try:
            self._drafter.admit(admissions)
        except Exception:
            self._give_up("admitting a request")

    def remember(self, texts: Sequence[FinishedText]) -> None:
        if self.is_broken:
            return
        try:
            self._drafter.remember(texts)
        except Exception:
            self._give_up("storing finished texts")

    def forget(self) -> None:
        if self.is_broken:
            return
        try:
            self._drafter.forget()
        except Exception:
            self._give_up("starting over")

    def propose(self, plan: StepPlan, table: RowTable) -> DraftTree:
        if not self.is_broken:
            try:
                return self._drafter.propose(plan, table)
            except Exception:
                self._give_up("proposing")
        return _absent(table.last_tokens.index_select(0, plan.decode.rows), plan.shape.nodes)

    def observe(self, plan: StepPlan, outcome: StepOutcome, table: RowTable) -> None:
        if self.is_broken:
            return
        try:
            self._drafter.observe(plan, outcome, table)
        except Exception:
            self._give_up("catching up")

    def _give_up(self, doing: str) -> None:
        if is_capturing():  # the step itself has run; only its capture failed
            raise
        if not self._is_alone:  # the other ranks wait for this one: the step fails on all
            raise
        self.is_broken = True
        _log.exception("the drafter failed while %s; going on by plain decoding", doing)


def _absent(root: torch.Tensor, nodes: int) -> DraftTree:  # root [rows]
    """Node 0 and absent drafts."""
    drafts = root.new_full((root.shape[0], nodes - 1), -1)
    return chain(torch.cat([root[:, None], drafts], dim=1))
