"""The draft modules of a target: one module that is repeated, or one for each depth."""

import torch

from outrider.kv.kv_pool import KVPool
from outrider.models.draft_model import ModelFacts
from outrider.models.mtp.mtp_module import MtpModule
from outrider.step.attention_backend import AttentionBackend
from outrider.step.plan import StepPlan


class ModuleChain:
    """Module k drafts the token at distance k + 2 from its row. Its KV is layer k of the pool.

    A chain of one module is a `DraftModel`: the module runs at every draft step.
    """

    def __init__(
        self,
        facts: ModelFacts,
        modules: tuple[MtpModule, ...],
        *,
        is_chained: bool,  # a module reads the state of the module before it, not the target's
        target_ids: torch.Tensor,  # [vocab]
    ) -> None:
        assert facts.num_layers == len(modules), "every module has one layer of KV"
        self.facts = facts
        self.is_chained = is_chained
        self.target_ids = target_ids
        self._modules = modules

    def __len__(self) -> int:
        return len(self._modules)

    def forward_module(
        self,
        index: int,
        plan: StepPlan,
        state: torch.Tensor,  # [num_query, width] before each query token
        kv: KVPool,
        attention: AttentionBackend,
    ) -> torch.Tensor:  # [num_query, width] after it
        """Run the query tokens of a plan through one module. Writes its KV."""
        layer, page_size = kv.layers[index], kv.layout.page_size
        return self._modules[index].forward(plan, state, layer, page_size, attention)

    def scores(self, index: int, state: torch.Tensor) -> torch.Tensor:  # [n, width] -> [n, vocab]
        """Logits of one module for the token that follows its state."""
        return self._modules[index].logits(state)

    def forward(
        self, plan: StepPlan, state: torch.Tensor, kv: KVPool, attention: AttentionBackend
    ) -> torch.Tensor:  # [num_query, width]
        return self.forward_module(0, plan, state, kv, attention)

    def catch_up(
        self,
        plan: StepPlan,
        aux_hidden_states: torch.Tensor,  # [num_query, width] final ones, which are its states
        kv: KVPool,
        attention: AttentionBackend,
    ) -> torch.Tensor:  # [num_query, width]
        (module,), (layer,) = self._modules, kv.layers
        module.write_kv(plan, aux_hidden_states, layer, attention)
        return aux_hidden_states

    def logits(self, state: torch.Tensor) -> torch.Tensor:  # [n, width] -> [n, vocab]
        return self.scores(0, state)
