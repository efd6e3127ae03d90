"""EAGLE 1 and 2: predicts the target's final hidden state; the target's lm_head scores tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from outrider.kv.kv_pool import KVPool
from outrider.models.draft_model import ModelFacts
from outrider.models.eagle.eagle_layer import HeadLayer, NormedHeadLayer, apply_padded, run_layers
from outrider.ops.linear.linear import Linear
from outrider.step.attention_backend import AttentionBackend
from outrider.step.plan import StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleParts:
    """All weights of an EAGLE head. Embedding and lm_head may be the target's."""

    embedding: torch.Tensor  # [vocab, width]
    join: Linear  # [2 * width -> width]
    layer: HeadLayer
    score: Callable[[torch.Tensor], torch.Tensor]  # [n, width] -> [n, draft_vocab]
    target_ids: torch.Tensor  # [draft_vocab] int64


class EagleHead:
    """A draft row joins a token and the state before it. There is no norm before attention."""

    def __init__(
        self,
        facts: ModelFacts,
        parts: EagleParts,  # with the first layer
        later: Sequence[NormedHeadLayer] = (),
    ) -> None:
        self.facts = facts
        self._later = later
        self.target_ids = parts.target_ids
        self._parts = parts

    def project(self, aux_hidden_states: torch.Tensor) -> torch.Tensor:  # [num_query, width] both
        return aux_hidden_states  # the state is the target's final hidden state

    def forward(
        self, plan: StepPlan, state: torch.Tensor, kv: KVPool, attention: AttentionBackend
    ) -> torch.Tensor:  # [num_query, width]
        x = self._join(plan, state)
        after = self._parts.layer(plan, x, x, kv, attention)
        return run_layers(self._later, plan, after, kv, attention)

    def catch_up(
        self,
        plan: StepPlan,
        aux_hidden_states: torch.Tensor,  # [num_query, width]
        kv: KVPool,
        attention: AttentionBackend,
    ) -> torch.Tensor:  # [num_query, width]
        state = self.project(aux_hidden_states)
        if self._later:
            return self.forward(plan, state, kv, attention)
        self._parts.layer.write_kv(plan, self._join(plan, state), kv, attention)
        return state

    def _join(self, plan: StepPlan, state: torch.Tensor) -> torch.Tensor:  # [num_query, width]
        embedded = F.embedding(plan.queries.tokens, self._parts.embedding)
        return apply_padded(self._parts.join, torch.cat([embedded, state], dim=-1))

    def logits(self, state: torch.Tensor) -> torch.Tensor:  # [n, width] -> [n, draft_vocab]
        return self._parts.score(state)
