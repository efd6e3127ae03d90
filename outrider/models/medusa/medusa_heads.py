"""Medusa: head k predicts the token k + 1 after the last one, from the state before that token."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from outrider.kv.kv_pool import KVPool
from outrider.models.block_model import BlockModel, DraftBlock, SlotPlans
from outrider.models.draft_model import ModelFacts
from outrider.models.eagle.eagle_layer import apply_padded
from outrider.ops.linear.linear import Linear
from outrider.step.attention_backend import AttentionBackend
from outrider.step.plan import StepPlan

Score = Callable[[torch.Tensor], torch.Tensor]  # [n, width] -> [n, draft_vocab]


class MedusaHeads(BlockModel[KVPool, AttentionBackend]):
    """A slot is a head. No slot reads tokens or other slots, so there is no KV."""

    def __init__(
        self,
        facts: ModelFacts,
        target_ids: torch.Tensor,  # [draft_vocab]
        *,
        blocks: Sequence[Sequence[Linear]],  # [width -> width] of each head
        scores: Sequence[Score],  # of each head
    ) -> None:
        block = DraftBlock(
            size=len(blocks), first=0, is_causal=True, mask_token=0, reads_state=True
        )
        super().__init__(facts, block, target_ids)
        self._blocks = blocks
        self._scores = scores

    def catch_up(
        self,
        plan: StepPlan,
        aux_hidden_states: torch.Tensor,  # [num_query, width] the final hidden state
        kv: KVPool,
        attention: AttentionBackend,
    ) -> torch.Tensor:  # [num_query, width]
        del plan, kv, attention
        return aux_hidden_states

    def forward_block(
        self, slots: SlotPlans, states: torch.Tensor, kv: KVPool, attention: AttentionBackend
    ) -> torch.Tensor:  # [rows, slots, width]
        del kv, attention
        heads = self._blocks[: slots.plan.shape.nodes]
        return torch.stack([_run_blocks(blocks, states) for blocks in heads], dim=1)

    def logits(self, states: torch.Tensor, first: int) -> torch.Tensor:
        scores = self._scores[first : first + states.shape[1]]
        each = [score(states[:, slot]) for slot, score in enumerate(scores)]
        return torch.stack(each, dim=1)


def _run_blocks(blocks: Sequence[Linear], x: torch.Tensor) -> torch.Tensor:  # [n, width] both
    for block in blocks:
        x = x + F.silu(apply_padded(block, x))
    return x
