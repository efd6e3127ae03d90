"""A whole smaller model as a drafter: it needs nothing of the target but the tokens."""

import torch

from outrider.attention.protocol import AttentionBackend
from outrider.memory.pool import KVPool
from outrider.models.decoder import Decoder
from outrider.models.draft import DraftFacts, Taps
from outrider.plan.plan import StepPlan


class StandaloneDraft:
    """Runs one position ahead of a head: its KV holds the last token itself, not a feature of it."""

    def __init__(self, decoder: Decoder, *, vocab_size: int) -> None:
        self._decoder = decoder
        config = decoder.config
        self._facts = DraftFacts(
            taps=Taps(),
            width=config.block.hidden,
            lead=1,
            num_layers=config.num_layers,
            attention=config.attention,
        )
        # Models of one tokenizer are padded to different sizes; ids past the target's mean nothing.
        size = min(config.vocab_size, vocab_size)
        self._target_ids = torch.arange(size, device=decoder.embedding.device)

    @property
    def facts(self) -> DraftFacts:
        return self._facts

    @property
    def target_ids(self) -> torch.Tensor:
        return self._target_ids

    def project(self, features: torch.Tensor) -> torch.Tensor:  # [num_query, 0]
        return features.new_zeros(features.shape[0], self._facts.width)

    def advance(
        self,
        plan: StepPlan,
        state: torch.Tensor,  # [num_query, width], which a whole model does not need
        kv: KVPool,
        attention: AttentionBackend,
    ) -> torch.Tensor:  # [num_query, width]
        del state
        return self._decoder.run(plan, kv, attention, self._facts.taps).hidden

    def logits(self, state: torch.Tensor) -> torch.Tensor:  # [n, width] -> [n, draft_vocab]
        return self._decoder.logits(state)[:, : self._target_ids.shape[0]]
