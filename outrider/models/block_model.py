"""The base of block-parallel draft models: one forward pass drafts several tokens of a row.

The query tokens of a block are the last token and masks. They attend to the draft KV of the tokens
before, the context, and to each other.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from outrider.models.draft_model import ModelFacts
from outrider.step.plan import StepPlan

Pool = TypeVar("Pool")
Planner = TypeVar("Planner")


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftBlock:
    """The query tokens of a round: slot 0 is the last token, the others are masks."""

    size: int  # slots at most
    first: int  # slot of the first draft: 1 if a slot predicts its own token, 0 if the next one
    is_causal: bool  # a slot reads no later slots
    mask_token: int  # the query token of a mask; 0 where no token is embedded for it
    lookahead: int = 0  # a row reads the token so far after its position, and so does slot 0
    reads_state: bool = False  # slot 0 reads the target's projected state before the last token

    @property
    def num_drafts(self) -> int:
        """How deep a block drafts at most."""
        return self.size - self.first

    def slots(self, steps: int) -> int:
        """Slots that a round of so many steps runs. Later ones change nothing in a causal block."""
        return min(self.size, self.first + steps) if self.is_causal else self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlans:
    """The plans on which the slots of a round run."""

    plan: StepPlan  # slots are its nodes, and read each other as the block says
    causal: StepPlan  # no slot reads later ones: the same plan, unless the model is mixed


class BlockModel(ABC, Generic[Pool, Planner]):
    """Writes the context of decided tokens, and drafts whole blocks."""

    # Whether logits depend on the token before, besides the slot.
    is_conditional: bool = False
    # Whether slots read later slots in some layers and not in others.
    is_mixed: bool = False
    # Whether the catch-up reads the attention part of its plan.
    catch_up_attends: bool = False

    def __init__(
        self,
        facts: ModelFacts,
        block: DraftBlock,
        target_ids: torch.Tensor,  # [draft_vocab] int64: of the tokens that it can propose
    ) -> None:
        self.facts = facts
        self.block = block
        self.target_ids = target_ids

    @abstractmethod
    def catch_up(
        self,
        plan: StepPlan,
        aux_hidden_states: torch.Tensor,  # [num_query, aux] of the target
        kv: Pool,  # as its layout opened it
        attention: Planner,  # likewise
    ) -> torch.Tensor:  # [num_query, width] with which a block can begin, if it reads a state
        """Write the draft KV of the query tokens of a plan."""

    @abstractmethod
    def forward_block(
        self,
        slots: SlotPlans,
        states: torch.Tensor,  # [rows, width] of slot 0; [rows, 0] if it reads none
        kv: Pool,
        attention: Planner,
    ) -> torch.Tensor:  # [rows, slots, width]
        """The hidden states of all slots. The KV that it writes lasts one round."""

    @abstractmethod
    def logits(
        self,
        states: torch.Tensor,  # [rows, slots, width]
        first: int,  # slot of the first of these states
    ) -> torch.Tensor:  # [rows, slots, draft_vocab]
        """Logits by slot alone."""

    def bias(self, states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """What the token before adds to the logits: [n, width], [n] -> [n, draft_vocab]."""
        del states, tokens
        raise AssertionError("asked of a model that is not conditional")

    def confidence(self, states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor | None:
        """Logarithm of how far the target will agree with a slot after the token before: the sum of
        min(p, q) over all tokens. [n, width], [n] -> [n], or None where it is not estimated.
        """
        del states, tokens
        return None


# Any such model, with any cache: its layout opens the pool and the planner that it takes.
AnyBlockModel = BlockModel[Any, Any]
