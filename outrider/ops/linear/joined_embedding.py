"""An embedding, and the norms of both sides of the input of an EAGLE-3 layer, on a CPU."""

import torch

from outrider.ops.norm_rope.rms_norm import CompiledNorm, Norm, with_eps


class JoinedEmbedding:
    """Owns what compiled functions read of them (`joined_rows`)."""

    def __init__(
        self,
        embedding: torch.Tensor,  # [vocab, width] float32
        embedding_norm: CompiledNorm,
        hidden_norm: CompiledNorm,
    ) -> None:
        self._embedding = embedding.contiguous()
        self._norms = [with_eps(norm.weight, norm.eps) for norm in (embedding_norm, hidden_norm)]
        self._fields = self._embedding.data_ptr(), *embedding.shape
        self._norm_fields = tuple(norm.data_ptr() for norm in self._norms)

    @property
    def width(self) -> int:
        return self._embedding.shape[1]

    def fields(
        self, tokens: torch.Tensor, *, states_at: int, joined_at: int
    ) -> tuple[int, ...]:  # tokens [num_query] int64; both addresses are of float32
        """The integers that compiled functions read: what is joined, and where to."""
        return tokens.data_ptr(), *self._fields, *self._norm_fields, states_at, joined_at


def join_embedding(
    embedding: torch.Tensor,  # [vocab, width]
    *,
    embedding_norm: Norm,
    hidden_norm: Norm,
) -> JoinedEmbedding | None:
    """None where a norm is no compiled function."""
    if isinstance(embedding_norm, CompiledNorm) and isinstance(hidden_norm, CompiledNorm):
        return JoinedEmbedding(embedding, embedding_norm, hidden_norm)
    return None


def refuse_outside(is_outside: int) -> None:
    if is_outside:
        raise IndexError("a token or a slot lies outside of the embedding or the KV of the head")
