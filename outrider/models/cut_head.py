"""The projection to logits, cut by vocabulary: every rank scores as many tokens."""

import torch

from outrider.distributed.rank_group import RankGroup
from outrider.models.layers.attention_layer import pad_rows
from outrider.models.layers.reduced_layers import JoinedHead
from outrider.models.tensor_cut import WHOLE, Cut
from outrider.ops.linear.choose_linear import LinearMaker
from outrider.ops.linear.linear import Linear


def head_cut(vocab_size: int, ranks: RankGroup) -> Cut:
    """The rows of lm_head that this rank reads. The last ranks may have fewer, or none."""
    if ranks.size == 1:
        return WHOLE
    own = _own_tokens(vocab_size, ranks)
    return Cut(0, ((own.start, own.stop),))


def make_head(
    rows: torch.Tensor,  # [own tokens, hidden] those of `head_cut`
    ranks: RankGroup,
    *,
    vocab_size: int,
    make_linear: LinearMaker,
) -> Linear:
    """The head whose logits are those of all ranks."""
    if ranks.size == 1:
        return make_linear(rows)
    padded, own = pad_rows(rows, _most_rows(vocab_size, ranks)), _own_tokens(vocab_size, ranks)
    return JoinedHead(make_linear(padded), ranks, vocab_size=vocab_size, own=own)


def _own_tokens(vocab_size: int, ranks: RankGroup) -> range:
    most = _most_rows(vocab_size, ranks)
    first = min(ranks.rank * most, vocab_size)
    return range(first, min(first + most, vocab_size))


def _most_rows(vocab_size: int, ranks: RankGroup) -> int:
    return -(-vocab_size // ranks.size)
