"""A whole smaller model as a drafter: it reads tokens only and has its own KV cache."""

from pathlib import Path

import torch

from outrider.config.engine_config import Arithmetic
from outrider.distributed.rank_group import ONE_RANK, RankGroup
from outrider.errors import ConfigError
from outrider.hub.model_folder import checked_folder
from outrider.kv.kv_pool import KVPool
from outrider.models.config_fields import read_fields
from outrider.models.decoder import Decoder
from outrider.models.decoder_loader import load_decoder
from outrider.models.draft_model import AuxLayers, ModelFacts
from outrider.models.model_config import read_config
from outrider.models.pard_draft import PardDraft, is_pard_config, read_pard_token
from outrider.models.rank_share import ranks_that_share
from outrider.models.same_vocabulary import check_same_tokenizer
from outrider.models.target import AnyTarget
from outrider.ops.linear.choose_linear import WeightType
from outrider.step.attention_backend import AttentionBackend
from outrider.step.plan import StepPlan


class StandaloneDraft:
    """The state is the model's final hidden state. Draft rows do not read it: they read KV.

    Models with one tokenizer may pad their vocabularies to different sizes, so the draft
    vocabulary is the smaller of the two.
    """

    def __init__(self, decoder: Decoder, *, target_vocab: int) -> None:
        config = decoder.config
        self.facts = ModelFacts(
            aux_layers=AuxLayers(),
            width=config.block.hidden,
            lead=1,
            num_layers=config.num_layers,
            attention=decoder.share.attention,
            begins_with_forward=False,
        )
        device = decoder.embedding.device
        self.target_ids = torch.arange(min(config.vocab_size, target_vocab), device=device)
        self._decoder = decoder.with_vocabulary(target_vocab)

    def forward(
        self, plan: StepPlan, state: torch.Tensor, kv: KVPool, attention: AttentionBackend
    ) -> torch.Tensor:  # [num_query, width]
        del state
        return self._decoder.hidden_states(plan, kv, attention)

    def catch_up(
        self,
        plan: StepPlan,
        aux_hidden_states: torch.Tensor,  # of any size: it reads none
        kv: KVPool,
        attention: AttentionBackend,
    ) -> torch.Tensor:  # [num_query, width]
        # The KV of a layer depends on all layers before it.
        return self.forward(plan, aux_hidden_states, kv, attention)

    def logits(self, state: torch.Tensor) -> torch.Tensor:  # [n, width] -> [n, draft_vocab]
        return self._decoder.logits(state)[:, : self.target_ids.shape[0]]


def load_standalone(
    folder: Path,
    *,
    target: AnyTarget,
    target_folder: Path,
    dtype: WeightType,
    device: torch.device,
    arithmetic: Arithmetic = "fast",
    ranks: RankGroup = ONE_RANK,
    max_context: int | None = None,  # of the engine; None: that of the model
) -> StandaloneDraft | PardDraft:
    """The model in a folder as a drafter for the target. Their tokenizers must be the same."""
    check_same_tokenizer(checked_folder(folder), target_folder)
    config = read_config(folder)
    if config.recurrence.layers:
        raise ConfigError(
            f"{folder} has row state, which a drafter cannot roll back yet; use a model "
            "whose layers all attend, --draft mtp or --draft ngram"
        )
    decoder = load_decoder(
        folder,
        dtype=dtype,
        device=device,
        arithmetic=arithmetic,
        ranks=ranks_that_share(config, ranks),
        max_context=max_context,
    )
    fields, vocab = read_fields(folder), target.config.vocab_size
    if not is_pard_config(fields):
        return StandaloneDraft(decoder, target_vocab=vocab)
    mask_token = read_pard_token(fields, config.vocab_size)
    return PardDraft(decoder, mask_token=mask_token, target_vocab=vocab)
