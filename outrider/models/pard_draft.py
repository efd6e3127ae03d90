"""PARD: a whole model, fine-tuned with mask tokens, that drafts a block in one pass."""

from typing import Any

import torch

from outrider.config.draft_config import MAX_NODES
from outrider.errors import ConfigError
from outrider.kv.kv_pool import KVPool
from outrider.models.block_model import BlockModel, DraftBlock, SlotPlans
from outrider.models.decoder import Decoder
from outrider.models.draft_model import AuxLayers, ModelFacts
from outrider.models.eagle.head_fields import read_mask_token
from outrider.step.attention_backend import AttentionBackend
from outrider.step.plan import StepPlan

USUAL_DRAFTS = 12  # as in the authors' code; configs do not say it
MOST_DRAFTS = MAX_NODES - 1
_TOKEN, _KIND = "pard_token", "spd_type"


def is_pard_config(fields: dict[str, Any]) -> bool:
    """Whether a config.json of a whole model says that it was trained to draft blocks."""
    return fields.get(_TOKEN) is not None or fields.get(_KIND) is not None


def read_pard_token(fields: dict[str, Any], vocab: int) -> int:
    """The token of all masks. Refuses models that read more than tokens."""
    if fields.get(_KIND) not in (None, "pard"):
        raise ConfigError(
            f"config.json sets {_KIND} to {fields[_KIND]}, which is not supported; use a model "
            "with pard"
        )
    token = fields.get(_TOKEN)
    return read_mask_token({_TOKEN: -1 if token is None else token}, vocab)


class PardDraft(BlockModel[KVPool, AttentionBackend]):
    """Slots are query tokens of the model. The catch-up runs decided tokens, without the last one,
    with which the next block begins.
    """

    catch_up_attends = True

    def __init__(self, decoder: Decoder, *, mask_token: int, target_vocab: int) -> None:
        config = decoder.config
        facts = ModelFacts(
            aux_layers=AuxLayers(),
            width=config.block.hidden,
            lead=0,
            num_layers=config.num_layers,
            attention=decoder.share.attention,
            begins_with_forward=True,
        )
        block = DraftBlock(size=MOST_DRAFTS, first=0, is_causal=True, mask_token=mask_token)
        shared = min(config.vocab_size, target_vocab)
        super().__init__(facts, block, torch.arange(shared, device=decoder.embedding.device))
        self._decoder = decoder.with_vocabulary(target_vocab)

    def catch_up(
        self,
        plan: StepPlan,
        aux_hidden_states: torch.Tensor,  # [num_query, 0]
        kv: KVPool,
        attention: AttentionBackend,
    ) -> torch.Tensor:  # [num_query, 0] no block reads it
        self._decoder.hidden_states(plan, kv, attention)
        return aux_hidden_states

    def forward_block(
        self, slots: SlotPlans, states: torch.Tensor, kv: KVPool, attention: AttentionBackend
    ) -> torch.Tensor:  # [rows, slots, width]
        hidden_states = self._decoder.hidden_states(slots.plan, kv, attention)
        return hidden_states.view(states.shape[0], slots.plan.shape.nodes, -1)

    def logits(self, states: torch.Tensor, first: int) -> torch.Tensor:
        del first
        scores = self._decoder.logits(states.flatten(0, 1))[:, : self.target_ids.shape[0]]
        return scores.view(*states.shape[:2], -1)
