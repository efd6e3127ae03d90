"""The input of an EAGLE-3 layer: embeddings and hidden states side by side, each normalised."""

import torch
import torch.nn.functional as F

from outrider.ops.norm_rope.rms_norm import Norm


def join_normed(
    tokens: torch.Tensor,  # [n] int64
    embedding: torch.Tensor,  # [vocab, dim]
    hidden_states: torch.Tensor,  # [n, dim]
    *,
    embedding_norm: Norm,
    hidden_norm: Norm,
) -> tuple[torch.Tensor, torch.Tensor]:  # [n, 2 * dim], [n, dim]
    """Normalised embeddings left of normalised hidden states; and the latter alone."""
    if hidden_states.is_cuda:
        from outrider.ops.norm_rope.join_normed_triton import join_normed_triton

        return join_normed_triton(
            tokens,
            embedding,
            hidden_states,
            embedding_norm=embedding_norm,
            hidden_norm=hidden_norm,
        )
    return join_normed_reference(
        tokens, embedding, hidden_states, embedding_norm=embedding_norm, hidden_norm=hidden_norm
    )


def join_normed_reference(
    tokens: torch.Tensor,
    embedding: torch.Tensor,
    hidden_states: torch.Tensor,
    *,
    embedding_norm: Norm,
    hidden_norm: Norm,
) -> tuple[torch.Tensor, torch.Tensor]:
    embedded = embedding_norm(F.embedding(tokens, embedding))
    normed = hidden_norm(hidden_states)
    return torch.cat([embedded, normed], dim=-1), normed
