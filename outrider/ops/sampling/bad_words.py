"""Bad words: sequences of tokens that must not occur in an output. The last token of a sequence is
banned wherever the tokens before it have just been emitted."""

import math

import torch

from outrider.ops.sampling.sampling_columns import WordTables

ANY_TOKEN = -2  # in a sequence: any token matches, and so does the begin of the output
NO_TOKEN = -3  # nothing matches


def ban_words_(
    logits: torch.Tensor,  # [n, vocab] float32; changed in place
    tables: WordTables,
    rows: torch.Tensor,  # [n] int64
    path: torch.Tensor,  # [n, depth] int64 drafts before the choice, -1 elsewhere
) -> None:
    """Set the logits of tokens that would complete a bad word to minus infinity."""
    before = latest_tokens(tables.outputs.index_select(0, rows), path)  # [n, context]
    words = tables.words.index_select(0, rows).long()  # [n, words, context + 1]
    wanted = words[:, :, :-1]
    matches = ((wanted == ANY_TOKEN) | (wanted == before[:, None])).all(2)  # [n, words]
    last = words[:, :, -1].clamp_min(0)  # of an unused entry, which matches nothing
    logits.scatter_add_(1, last, torch.where(matches, -math.inf, 0.0))


def latest_tokens(
    tokens: torch.Tensor,  # [n, context] int64, the latest last; -1 before the first
    more: torch.Tensor,  # [n, depth] int64 in order; -1 entries are skipped
) -> torch.Tensor:  # [n, context]
    """The last tokens after more tokens were emitted."""
    context = tokens.shape[1]
    joined = torch.cat([tokens, more], dim=1)
    is_token = torch.cat([torch.ones_like(tokens, dtype=torch.bool), more >= 0], dim=1)
    from_end = is_token.flip(1).long().cumsum(1).flip(1)  # 1 for the last token
    # Entries that are skipped, and tokens that are too old, go to a spare column.
    column = torch.where(is_token & (from_end <= context), context - from_end, context)
    latest = tokens.new_full((tokens.shape[0], context + 1), -1)
    return latest.scatter_(1, column, joined)[:, :context]
