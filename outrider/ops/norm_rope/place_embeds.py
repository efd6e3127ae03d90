"""Input embeddings in place of the embeddings of tokens."""

import torch


def place_embeds_(
    hidden_states: torch.Tensor,  # [n, hidden] of chunk tokens, written
    vectors: torch.Tensor,  # [n, hidden]
    is_embedded: torch.Tensor,  # [n] int64, 1 where a vector is used
) -> None:
    """Replace the embedding of every embedded token. Unused vectors may hold anything, NaN too."""
    hidden_states.copy_(torch.where(is_embedded[:, None] > 0, vectors, hidden_states))
