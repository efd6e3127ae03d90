"""DFlash and DSpark: a block of masks, drafted in one pass over the target's own states."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from outrider.kv.kv_pool import KVPool
from outrider.models.block_model import BlockModel, DraftBlock, SlotPlans
from outrider.models.dflash.markov_head import ConfidenceHead, MarkovHead
from outrider.models.draft_model import ModelFacts
from outrider.models.eagle.eagle_layer import NormedHeadLayer
from outrider.ops.norm_rope.rms_norm import Norm
from outrider.step.attention_backend import AttentionBackend
from outrider.step.plan import StepPlan

_NO_CANDIDATE = -1e9  # finite, so that sums with it are numbers

Rows = Callable[[torch.Tensor], torch.Tensor]  # [n, in] -> [n, out]


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashParts:
    """All weights. Embedding and lm_head may be the target's."""

    embedding: torch.Tensor  # [vocab, width]
    mask: torch.Tensor  # [width] what a mask is embedded as
    embedding_scale: float  # of both
    project: Rows  # [n, aux] -> [n, width] the context, normalised
    layers: Sequence[NormedHeadLayer]  # norms are for slots: the context is normalised already
    causal_layers: Sequence[bool]  # in which a slot reads no later slots
    norm: Norm
    score: Rows  # [n, width] normalised -> [n, draft_vocab]
    target_ids: torch.Tensor  # [draft_vocab] int64
    num_candidates: int | None  # best tokens of a slot that are drafted at all; None: any token
    markov: MarkovHead | None
    confidence: ConfidenceHead | None


class DFlashHead(BlockModel[KVPool, AttentionBackend]):
    """Every layer reads keys and values of the context, computed from the target's states."""

    def __init__(self, facts: ModelFacts, block: DraftBlock, parts: DFlashParts) -> None:
        super().__init__(facts, block, parts.target_ids)
        self.is_conditional = parts.markov is not None
        self.is_mixed = any(parts.causal_layers) and not block.is_causal
        self._parts = parts

    def catch_up(
        self,
        plan: StepPlan,
        aux_hidden_states: torch.Tensor,  # [num_query, aux]
        kv: KVPool,
        attention: AttentionBackend,
    ) -> torch.Tensor:  # [num_query, width]
        context = self._parts.project(aux_hidden_states)
        for each in self._parts.layers:
            each.layer.write_kv(plan, context, kv, attention)
        return context

    def forward_block(
        self, slots: SlotPlans, states: torch.Tensor, kv: KVPool, attention: AttentionBackend
    ) -> torch.Tensor:  # [rows, slots, width]
        parts, shape = self._parts, (states.shape[0], slots.plan.shape.nodes)
        anchors = slots.plan.queries.tokens.view(shape)[:, :1]
        masks = parts.mask.expand(shape[0], shape[1] - 1, -1)
        stream = torch.cat([F.embedding(anchors, parts.embedding), masks], dim=1).flatten(0, 1)
        if parts.embedding_scale != 1.0:
            stream = stream * parts.embedding_scale
        for each, is_causal in zip(parts.layers, parts.causal_layers, strict=True):
            stream = each(slots.causal if is_causal else slots.plan, stream, kv, attention)
        return parts.norm(stream).view(*shape, -1)

    def logits(self, states: torch.Tensor, first: int) -> torch.Tensor:
        del first
        scores = self._parts.score(states.flatten(0, 1))
        return self._among_candidates(scores).view(*states.shape[:2], -1)

    def _among_candidates(self, scores: torch.Tensor) -> torch.Tensor:  # [n, draft_vocab] both
        """The same, far lower for tokens that are not among the best before the bias is added."""
        most = self._parts.num_candidates
        if most is None or most >= scores.shape[1]:
            return scores
        best = scores.topk(most, dim=1).indices
        return torch.full_like(scores, _NO_CANDIDATE).scatter(1, best, scores.gather(1, best))

    def bias(self, states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        assert self._parts.markov is not None, "see is_conditional"
        return self._parts.markov.bias(states, tokens)

    def confidence(self, states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor | None:
        confidence, markov = self._parts.confidence, self._parts.markov
        if confidence is None:
            return None
        vectors = states[:, :0] if markov is None else markov.vector(tokens)
        return confidence.logprob(states, vectors)
