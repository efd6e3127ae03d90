"""What a drafter is. Plain decoding is the drafter that proposes nothing beyond node 0."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from outrider.models.draft_model import AuxLayers
from outrider.step.draft_tree import DraftTree, VerifyResult
from outrider.step.plan import ChunkRows, DecodeRows, DraftPlan, NoDraftPlan, StepPlan
from outrider.step.row_table import RowTable
from outrider.step.shape import StepShape
from outrider.wire.runner_facts import DraftFacts
from outrider.wire.scheduled_batch import RowAdmission


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What the target made of a step, as a drafter needs it."""

    aux_hidden_states: torch.Tensor  # [num_query, tapped] of every query token
    verify_result: VerifyResult
    chunk_choice: torch.Tensor  # [chunk.rows] the target's token after each chunk


class Drafter(Protocol):
    """Rides ahead of the target. Proposing changes nothing that outlives the step."""

    @property
    def facts(self) -> DraftFacts: ...

    @property
    def aux_layers(self) -> AuxLayers:
        """Which states of the target it wants to observe."""
        ...

    def bind(self, shape: StepShape, decode: DecodeRows, chunk: ChunkRows) -> DraftPlan:
        """Its own part of a plan, made once per shape."""
        ...

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        """Rows get new owners, before a step that may run them."""
        ...

    def forget(self) -> None:
        """A step failed: what it left may be no numbers, and no row lives on."""
        ...

    def propose(self, plan: StepPlan, table: RowTable) -> DraftTree:
        """A tree for every uniform row of the plan, by device operations alone."""
        ...

    def observe(self, plan: StepPlan, outcome: StepOutcome, table: RowTable) -> None:
        """Catch up with what the target chose. Lengths in the plan are those before the step."""
        ...


class ModelessDrafter:
    """What drafters without a draft model share: no taps, no part of a plan, nothing to catch up.

    Only `propose` is left to them.
    """

    def __init__(self, facts: DraftFacts) -> None:
        self._facts = facts

    @property
    def facts(self) -> DraftFacts:
        return self._facts

    @property
    def aux_layers(self) -> AuxLayers:
        return AuxLayers()

    def bind(self, shape: StepShape, decode: DecodeRows, chunk: ChunkRows) -> DraftPlan:
        del shape, decode, chunk
        return NoDraftPlan()

    def admit(self, admissions: Sequence[RowAdmission]) -> None:
        pass

    def forget(self) -> None:
        pass

    def observe(self, plan: StepPlan, outcome: StepOutcome, table: RowTable) -> None:
        pass


class NullDrafter(ModelessDrafter):
    """Proposes a tree of one node: the last token, whose successor the target then chooses."""

    def propose(self, plan: StepPlan, table: RowTable) -> DraftTree:
        return single_node(table.last_tokens.index_select(0, plan.decode.rows))


def single_node(tokens: torch.Tensor) -> DraftTree:  # tokens [rows]
    """The tree of node 0 alone."""
    return chain(tokens[:, None])


def chain(tokens: torch.Tensor) -> DraftTree:  # tokens [rows, nodes]
    """Every node below the one before it."""
    if tokens.is_cuda:
        from outrider.ops.tree.grow_tree_triton import (
            chain_nodes,  # a CPU installation has no Triton
        )

        parents, depths, ancestors = chain_nodes(tokens)
        return DraftTree(tokens=tokens, parents=parents, depths=depths, ancestors=ancestors)
    node = torch.arange(tokens.shape[1], device=tokens.device)
    below = torch.ones_like(node) << node  # bit of each node
    return DraftTree(
        tokens=tokens,
        parents=(node - 1).expand_as(tokens),
        depths=node.expand_as(tokens),
        ancestors=below.cumsum(0).expand_as(tokens),
    )
