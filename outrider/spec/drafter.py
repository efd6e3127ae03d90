"""The drafter protocol. Plain decoding is the drafter that proposes node 0 alone."""

from collections.abc import Sequence
from typing import Protocol

import torch

from outrider.models.draft_model import AuxLayers
from outrider.ops.tree.chain import single_node
from outrider.ops.tree.draft_tree import DraftTree, StepOutcome
from outrider.ops.tree.plan_rows import ChunkRows, DecodeRows
from outrider.step.plan import DraftPlan, NoDraftPlan, StepPlan
from outrider.step.row_table import RowTable
from outrider.step.shape import StepShape
from outrider.wire.runner_facts import DraftFacts
from outrider.wire.scheduled_batch import FinishedText, RowAdmission


class Drafter(Protocol):
    """Proposes drafts. Proposing changes nothing that outlives the step."""

    @property
    def facts(self) -> DraftFacts: ...

    @property
    def aux_layers(self) -> AuxLayers:
        """The layers of the target whose hidden states the drafter reads."""
        ...

    @property
    def row_tensors(self) -> Sequence[torch.Tensor]:
        """State of rows that a prompt leaves and its last tokens do not: [table_rows, ...] each."""
        ...

    def bind(self, shape: StepShape, decode: DecodeRows, chunk: ChunkRows) -> DraftPlan:
        """The drafter's part of a plan, made once per shape."""
        ...

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        """Rows get new requests, before a step that may run them."""
        ...

    def remember(self, texts: Sequence[FinishedText]) -> None:
        """Requests ended. Only drafters whose facts ask for their texts get them."""
        ...

    def forget(self) -> None:
        """A step failed: drop what it left, which may be NaN. No request continues."""
        ...

    def propose(self, plan: StepPlan, table: RowTable) -> DraftTree:
        """A tree for every decode row of the plan, by device operations alone."""
        ...

    def observe(self, plan: StepPlan, outcome: StepOutcome, table: RowTable) -> None:
        """Catch up with what the target chose. Lengths in the plan are those before the step."""
        ...


class WrappedDrafter:
    """The base of drafters around another one: passes everything on. A subclass changes some."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter

    @property
    def facts(self) -> DraftFacts:
        return self._drafter.facts

    @property
    def aux_layers(self) -> AuxLayers:
        return self._drafter.aux_layers

    @property
    def row_tensors(self) -> Sequence[torch.Tensor]:
        return self._drafter.row_tensors

    def bind(self, shape: StepShape, decode: DecodeRows, chunk: ChunkRows) -> DraftPlan:
        return self._drafter.bind(shape, decode, chunk)

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        self._drafter.admit(admissions)

    def remember(self, texts: Sequence[FinishedText]) -> None:
        self._drafter.remember(texts)

    def forget(self) -> None:
        self._drafter.forget()

    def propose(self, plan: StepPlan, table: RowTable) -> DraftTree:
        return self._drafter.propose(plan, table)

    def observe(self, plan: StepPlan, outcome: StepOutcome, table: RowTable) -> None:
        self._drafter.observe(plan, outcome, table)


class BaseDrafter:
    """What most drafters share: a step writes all that the next round reads, so no call is needed.

    A subclass adds `bind`, `propose` and `observe`, and overrides what it keeps of rows.
    """

    def __init__(self, facts: DraftFacts, aux_layers: AuxLayers) -> None:
        self._facts = facts
        self._aux_layers = aux_layers

    @property
    def facts(self) -> DraftFacts:
        return self._facts

    @property
    def aux_layers(self) -> AuxLayers:
        return self._aux_layers

    @property
    def row_tensors(self) -> Sequence[torch.Tensor]:
        return ()

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        pass

    def remember(self, texts: Sequence[FinishedText]) -> None:
        pass

    def forget(self) -> None:
        pass


class ModelessDrafter(BaseDrafter):
    """The base of drafters without a draft model: no aux layers, no part of a plan, no catch-up.

    A subclass adds `propose`.
    """

    def __init__(self, facts: DraftFacts) -> None:
        super().__init__(facts, AuxLayers())

    def bind(self, shape: StepShape, decode: DecodeRows, chunk: ChunkRows) -> DraftPlan:
        del shape, decode, chunk
        return NoDraftPlan()

    def observe(self, plan: StepPlan, outcome: StepOutcome, table: RowTable) -> None:
        pass


class NullDrafter(ModelessDrafter):
    """Proposes a tree of one node: the last token. The target chooses the token after it."""

    def propose(self, plan: StepPlan, table: RowTable) -> DraftTree:
        return single_node(table.last_tokens.index_select(0, plan.decode.rows))
