"""Small heads of DSpark and DFlash2: what the token before adds to logits, and a draft's chance."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from outrider.ops.linear.linear import Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkovHead:
    """A low-rank table of which token follows which."""

    vectors: torch.Tensor  # [vocab, rank] of the token before
    score: Linear  # [rank -> draft_vocab]
    gate: Linear | None  # [width + rank -> rank]
    scale: Linear | None = None  # [width -> rank] of DFlash2

    def vector(self, tokens: torch.Tensor) -> torch.Tensor:  # [n] -> [n, rank]
        return F.embedding(tokens, self.vectors)

    def bias(self, states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """What is added to logits: [n, width], [n] -> [n, draft_vocab]."""
        vector = self.vector(tokens)
        if self.gate is not None:
            vector = self.gate(torch.cat([states, vector], dim=-1)).sigmoid() * vector
        if self.scale is not None:
            vector = self.scale(states) * vector
        return self.score(vector)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceHead:
    """Estimates the chance that a slot's draft is accepted, given that the one before was."""

    weight: torch.Tensor  # [width] or [width + rank] float32
    bias: torch.Tensor  # [1] float32
    reads_token: bool

    def logprob(self, states: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        """Its logarithm: [n, width], [n, rank] -> [n]."""
        read = torch.cat([states, vectors], dim=-1) if self.reads_token else states
        return F.logsigmoid(read.float() @ self.weight + self.bias)
