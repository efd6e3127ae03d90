"""DFlash and DSpark: a block of masks, drafted in one pass over the target's own states."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from outrider.kv.kv_pool import KVPool
from outrider.models.block_model import DraftBlock
from outrider.models.dflash.markov_head import ConfidenceHead, MarkovHead
from outrider.models.draft_model import ModelFacts
from outrider.models.eagle.eagle_layer import HeadLayer
from outrider.ops.norm_rope.rms_norm import Norm
from outrider.step.attention_backend import AttentionBackend
from outrider.step.plan import StepPlan

Rows = Callable[[torch.Tensor], torch.Tensor]  # [n, in] -> [n, out]


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashLayer:
    """A decoder layer. Its norm is for slots: the context is normalised before all layers."""

    norm: Norm
    layer: HeadLayer


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashParts:
    """All weights. Embedding and lm_head may be the target's."""

    embedding: torch.Tensor  # [vocab, width]
    mask: torch.Tensor  # [width] what a mask is embedded as
    project: Rows  # [n, aux] -> [n, width] the context, normalised
    layers: Sequence[DFlashLayer]
    norm: Norm
    score: Rows  # [n, width] normalised -> [n, draft_vocab]
    target_ids: torch.Tensor  # [draft_vocab] int64
    markov: MarkovHead | None
    confidence: ConfidenceHead | None


class DFlashHead:
    """Every layer reads keys and values of the context, computed from the target's states."""

    def __init__(self, facts: ModelFacts, block: DraftBlock, parts: DFlashParts) -> None:
        self.facts = facts
        self.block = block
        self.target_ids = parts.target_ids
        self.is_conditional = parts.markov is not None
        self._parts = parts

    def catch_up(
        self,
        plan: StepPlan,
        aux_hidden_states: torch.Tensor,  # [num_query, aux]
        kv: KVPool,
        attention: AttentionBackend,
    ) -> None:
        context = self._parts.project(aux_hidden_states)
        for each in self._parts.layers:
            each.layer.write_kv(plan, context, kv, attention)

    def forward_block(
        self, plan: StepPlan, anchors: torch.Tensor, kv: KVPool, attention: AttentionBackend
    ) -> torch.Tensor:  # [rows, size, width]
        parts, rows = self._parts, anchors.shape[0]
        masks = parts.mask.expand(rows, self.block.size - 1, -1)
        first = F.embedding(anchors, parts.embedding)[:, None]
        stream = torch.cat([first, masks], dim=1).flatten(0, 1)
        for each in parts.layers:
            stream = each.layer(plan, each.norm(stream), stream, kv, attention)
        return parts.norm(stream).view(rows, self.block.size, -1)

    def logits(self, states: torch.Tensor) -> torch.Tensor:  # [n, width] -> [n, draft_vocab]
        return self._parts.score(states)

    def bias(self, states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        assert self._parts.markov is not None, "see is_conditional"
        return self._parts.markov.bias(states, tokens)

    def confidence(self, states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor | None:
        confidence, markov = self._parts.confidence, self._parts.markov
        if confidence is None:
            return None
        vectors = states[:, :0] if markov is None else markov.vector(tokens)
        return confidence.logprob(states, vectors)
