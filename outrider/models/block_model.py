"""The interface of block-parallel draft models: one forward pass drafts several tokens of a row.

The query tokens of a block are the last token and masks. They attend to the context, which are keys
and values computed from the target's aux hidden states alone, and to each other.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from outrider.kv.kv_pool import KVPool
from outrider.models.draft_model import ModelFacts
from outrider.step.attention_backend import AttentionBackend
from outrider.step.plan import StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftBlock:
    """The query tokens of a round: slot 0 is the last token, the others are masks."""

    size: int  # slots
    first: int  # slot of the first draft: 1 if a slot predicts its own token, 0 if the next one
    is_causal: bool  # a slot reads no later slots

    @property
    def num_drafts(self) -> int:
        """How deep a block drafts."""
        return self.size - self.first


class BlockModel(Protocol):
    """Writes the context of decided tokens, and drafts whole blocks."""

    @property
    def facts(self) -> ModelFacts: ...

    @property
    def block(self) -> DraftBlock: ...

    @property
    def target_ids(self) -> torch.Tensor:
        """[draft_vocab] int64: the target's id of each token that the model can propose."""
        ...

    @property
    def is_conditional(self) -> bool:
        """Whether logits depend on the token before, besides the slot."""
        ...

    def catch_up(
        self,
        plan: StepPlan,
        aux_hidden_states: torch.Tensor,  # [num_query, aux] of the target
        kv: KVPool,
        attention: AttentionBackend,
    ) -> None:
        """Write the draft KV of the query tokens of a plan; their tokens do not matter."""
        ...

    def forward_block(
        self,
        plan: StepPlan,  # of blocks
        anchors: torch.Tensor,  # [rows] the last token of each row
        kv: KVPool,
        attention: AttentionBackend,
    ) -> torch.Tensor:  # [rows, size, width]
        """The hidden states of all slots. The KV that it writes lasts one round."""
        ...

    def logits(self, states: torch.Tensor) -> torch.Tensor:  # [n, width] -> [n, draft_vocab]
        """Logits by slot alone."""
        ...

    def bias(self, states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """What the token before adds to the logits: [n, width], [n] -> [n, draft_vocab]."""
        ...

    def confidence(self, states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor | None:
        """[n] log-probability that the best token of a slot is accepted after the token before, or
        None where the model does not estimate it.
        """
        ...
