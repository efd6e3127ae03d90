"""P-EAGLE: an EAGLE-3 head that drafts a block in one pass, by masks in place of later tokens."""

from collections.abc import Sequence

import torch

from outrider.kv.kv_pool import KVPool
from outrider.models.block_model import BlockModel, DraftBlock, SlotPlans
from outrider.models.draft_model import ModelFacts
from outrider.models.eagle.eagle3 import Eagle3Parts
from outrider.models.eagle.eagle_layer import NormedHeadLayer, run_layers
from outrider.step.attention_backend import AttentionBackend
from outrider.step.plan import StepPlan


class PEagleHead(BlockModel[KVPool, AttentionBackend]):
    """The first layer reads tokens and states as EAGLE-3 does; later layers are plain ones.

    A mask has an embedding, as a token has, and all masks share one state that was trained.
    """

    def __init__(
        self,
        facts: ModelFacts,
        block: DraftBlock,
        parts: Eagle3Parts,  # with the first layer
        *,
        later: Sequence[NormedHeadLayer],
        mask_hidden: torch.Tensor,  # [1, aux] aux states of a mask
    ) -> None:
        super().__init__(facts, block, parts.target_ids)
        self.catch_up_attends = bool(later)
        self._parts = parts
        self._later = later
        self._mask_state = parts.project(mask_hidden)  # [1, width]

    def catch_up(
        self,
        plan: StepPlan,
        aux_hidden_states: torch.Tensor,  # [num_query, aux]
        kv: KVPool,
        attention: AttentionBackend,
    ) -> torch.Tensor:  # [num_query, width]
        """Run all layers but the last, of which only keys and values are needed."""
        states, layer = self._parts.project(aux_hidden_states), self._parts.layer
        x, stream = self._parts.join(plan, states)
        stream = stream.clone() if self._later else stream  # layers write to it
        for each in self._later:
            stream = layer(plan, x, stream, kv, attention)
            layer, x = each.layer, each.norm(stream)
        layer.write_kv(plan, x, kv, attention)
        return states

    def forward_block(
        self, slots: SlotPlans, states: torch.Tensor, kv: KVPool, attention: AttentionBackend
    ) -> torch.Tensor:  # [rows, slots, width]
        parts, plan = self._parts, slots.plan
        shape = states.shape[0], plan.shape.nodes
        masks = self._mask_state.expand(shape[0], shape[1] - 1, -1)
        before = torch.cat([states[:, None], masks], dim=1).flatten(0, 1)
        stream = parts.layer(plan, *parts.join(plan, before), kv, attention)
        stream = run_layers(self._later, plan, stream, kv, attention)
        return parts.norms.output(stream).view(*shape, -1)

    def logits(self, states: torch.Tensor, first: int) -> torch.Tensor:
        del first
        return self._parts.score(states.flatten(0, 1)).view(*states.shape[:2], -1)
