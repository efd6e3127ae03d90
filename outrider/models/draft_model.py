"""The interface of draft models: each query token yields a hidden state that predicts a token and
is the input of the next draft step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

from outrider.kv.kv_pool import ModelPool
from outrider.models.cache_layout import CacheLayout
from outrider.models.model_config import AnyAttention
from outrider.models.paged_layout import paged_layout
from outrider.step.attention_backend import AttentionPlanner
from outrider.step.plan import StepPlan

Pool = TypeVar("Pool", contravariant=True)
Planner = TypeVar("Planner", contravariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuxLayers:
    """The hidden states of the target that a drafter reads (aux_hidden_states).

    Layer k is the residual stream after k layers; 0 is the embedding. Of several residual streams
    it is the mean. `final` is the normalised state that lm_head reads. `streams` are all residual
    streams after the last layer. The states are concatenated in this order.
    """

    layers: tuple[int, ...] = ()
    final: bool = False
    streams: bool = False  # of targets that have several


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Static facts of a draft model."""

    aux_layers: AuxLayers
    width: int  # of the hidden state that one draft step passes to the next
    lead: int  # positions its KV is ahead of the target's: 0 for heads, 1 for whole models
    num_layers: int
    attention: AnyAttention  # of its own KV
    # A round begins by running the last token: until then the catch-up wrote nothing but its KV.
    begins_with_forward: bool
    has_adapters: bool = False  # rows run through LoRA adapters of their own

    @property
    def heads(self) -> Sequence[AnyAttention]:
        """The attention that runs on the shared backend."""
        return (self.attention,) if self.num_layers else ()

    def layout(
        self, *, page_size: int, dtype: torch.dtype, nodes: int
    ) -> CacheLayout[ModelPool, AttentionPlanner]:
        """The layout of its cache, for chains of up to that many nodes: by default pages of KV."""
        del nodes
        return paged_layout(
            self.attention, layers=self.num_layers, page_size=page_size, dtype=dtype
        )


class DraftModel(Protocol[Pool, Planner]):
    """A draft row runs one query token on a state and its own KV, and yields the next state."""

    @property
    def facts(self) -> ModelFacts: ...

    @property
    def target_ids(self) -> torch.Tensor:
        """[draft_vocab] int64: the target's id of each token that the model can propose."""
        ...

    def forward(
        self,
        plan: StepPlan,
        state: torch.Tensor,  # [num_query, width] before each query token
        kv: Pool,  # as its layout opened it
        attention: Planner,  # likewise
    ) -> torch.Tensor:  # [num_query, width] after it
        """Run the query tokens of a plan. Writes their draft KV."""
        ...

    def catch_up(
        self,
        plan: StepPlan,
        aux_hidden_states: torch.Tensor,  # [num_query, aux] of the target before each query token
        kv: Pool,
        attention: Planner,
    ) -> torch.Tensor:  # [num_query, width] with which a round can begin after each query token
        """Write the draft KV of the query tokens of a plan, and compute no more than it needs.

        Returns the states after the tokens, or those before them if it `begins_with_forward`.
        """
        ...

    def logits(self, state: torch.Tensor) -> torch.Tensor:  # [n, width] -> [n, draft_vocab]
        """Logits of the token that follows the state."""
        ...


# Any draft model, with any cache: its layout opens the pool and the planner that it takes.
AnyDraftModel = DraftModel[Any, Any]
