"""The forward pass that all families share: a pure function of a plan, the weights and the KV."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from outrider.attention.protocol import AttentionBackend
from outrider.memory.pool import KVPool
from outrider.models.config import ModelConfig
from outrider.models.layers.attention import AttentionStep, SelfAttention, pad_rows
from outrider.models.layers.linear import Linear
from outrider.models.layers.mlp import Mlp
from outrider.models.layers.norm import Norm
from outrider.models.layers.rope import RotaryEmbedding
from outrider.plan.plan import StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One layer."""

    attention_norm: Norm
    attention: SelfAttention
    mlp_norm: Norm
    mlp: Mlp


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderParts:
    """All weights of a decoder, ready to compute with."""

    embedding: torch.Tensor  # [vocab, hidden]
    rotary: RotaryEmbedding
    blocks: tuple[Block, ...]
    norm: Norm
    head: Linear


class Decoder:
    """Owns the weights. `dtype` is that of activations and of the KV cache."""

    def __init__(self, config: ModelConfig, parts: DecoderParts) -> None:
        self.config = config
        self.dtype = parts.embedding.dtype
        self._parts = parts
        self._min_rows = parts.head.min_rows

    def hidden(
        self, plan: StepPlan, kv: KVPool, attention: AttentionBackend
    ) -> torch.Tensor:  # [num_query, hidden]
        """The final, normalised state of every query token; writes their KV."""
        parts, queries = self._parts, plan.queries
        num_query = queries.tokens.shape[0]
        step = AttentionStep(
            rotation=parts.rotary.at(queries.positions),
            slots=queries.slots,
            backend=attention,
            plan=plan.attention,
        )
        # Rows past num_query only give the linear maps a faster size; attention never sees them.
        tokens = pad_rows(queries.tokens, max(num_query, self._min_rows))
        stream = F.embedding(tokens, parts.embedding)
        for block, layer in zip(parts.blocks, kv.layers, strict=True):
            stream = block.attention(block.attention_norm(stream), stream, layer, step)
            stream = block.mlp(block.mlp_norm(stream), stream)
        return parts.norm(stream[:num_query])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:  # [n, hidden] -> [n, vocab] float32
        """Scores of every token of the vocabulary, before any sampling law."""
        num_rows = hidden.shape[0]
        padded = pad_rows(hidden, max(num_rows, self._min_rows))
        return self._parts.head(padded)[:num_rows].float()
