"""A draft head whose rows run through adapters of their own."""

from typing import Any

import torch

from outrider.models.adapters.adapter_bank import AdapterBank
from outrider.models.draft_model import AnyDraftModel
from outrider.step.plan import StepPlan


class AdaptedHead:
    """Another head. Its layers were made with a bank, which is told the adapters of each run."""

    def __init__(self, head: AnyDraftModel, adapters: AdapterBank) -> None:
        self._head = head
        self._adapters = adapters
        self.facts = head.facts
        self.target_ids = head.target_ids

    def forward(
        self,
        plan: StepPlan,
        state: torch.Tensor,  # [num_query, width]
        kv: Any,
        attention: Any,
    ) -> torch.Tensor:  # [num_query, width]
        self._begin(plan)
        return self._head.forward(plan, state, kv, attention)

    def catch_up(
        self,
        plan: StepPlan,
        aux_hidden_states: torch.Tensor,  # [num_query, aux]
        kv: Any,
        attention: Any,
    ) -> torch.Tensor:  # [num_query, width]
        self._begin(plan)
        return self._head.catch_up(plan, aux_hidden_states, kv, attention)

    def logits(self, state: torch.Tensor) -> torch.Tensor:  # [n, width] -> [n, draft_vocab]
        return self._head.logits(state)  # lm_head takes no adapters

    def _begin(self, plan: StepPlan) -> None:
        self._adapters.begin(plan.queries.adapters, self._adapters.padded(plan.shape.num_query))
