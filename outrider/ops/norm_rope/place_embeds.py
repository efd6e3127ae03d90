"""Input embeddings in place of the embeddings of tokens."""

import torch


def place_embeds_(
    hidden_states: torch.Tensor,  # [n, hidden] of chunk tokens, written
    vectors: torch.Tensor,  # [n, hidden]
    is_embedded: torch.Tensor,  # [n] int64, 1 where a vector is used
) -> None:
    """Replace the embedding of every embedded token. Unused vectors may hold anything, NaN too."""
    hidden_states.copy_(torch.where(is_embedded[:, None] > 0, vectors, hidden_states))


def add_embeds_(
    hidden_states: torch.Tensor,  # [n, hidden] of chunk tokens, written
    vectors: torch.Tensor,  # [n, hidden]
    is_embedded: torch.Tensor,  # [n] int64, 1 where a vector is added
) -> None:
    """Add a vector to the hidden state of every embedded token. The others keep their bits."""
    place_embeds_(hidden_states, hidden_states + vectors, is_embedded)
