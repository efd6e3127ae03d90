"""Rows of the sampling table for allowed tokens and bad words."""

from collections.abc import Sequence
from itertools import repeat

import torch

from outrider.ops.sampling.bad_words import ANY_TOKEN, NO_TOKEN
from outrider.ops.sampling.sampling_columns import ThinkingTables, WordTables
from outrider.step.host_copy import upload
from outrider.wire.row_sampling import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS, Restrictions
from outrider.wire.scheduled_batch import RowAdmission

_CONTEXT = MAX_BAD_WORD_TOKENS - 1  # tokens before the one that is banned


def new_word_tables(rows: int, device: torch.device) -> WordTables:
    """Tables without words."""
    words = torch.full(
        (rows, MAX_BAD_WORDS, _CONTEXT + 1), NO_TOKEN, dtype=torch.int32, device=device
    )
    outputs = torch.full((rows, _CONTEXT), -1, dtype=torch.int64, device=device)
    return WordTables(words=words, outputs=outputs)


def new_thinking_tables(rows: int, device: torch.device) -> ThinkingTables:
    """Tables without budgets."""
    integers = torch.full((3, rows), -1, dtype=torch.int64, device=device)
    flags = torch.zeros((2, rows), dtype=torch.bool, device=device)
    return ThinkingTables(
        opens=integers[0],
        closes=integers[1],
        until=integers[2],
        has_begun=flags[0],
        has_ended=flags[1],
    )


def clear_thinking_(tables: ThinkingTables, rows: torch.Tensor) -> None:  # [n] int64
    """Forget the budgets of some rows."""
    for tensor in (tables.opens, tables.closes):
        tensor.index_fill_(0, rows, -1)
    for flags in (tables.has_begun, tables.has_ended):
        flags.index_fill_(0, rows, False)


def write_thinking_(tables: ThinkingTables, admission: RowAdmission) -> None:
    """Write the budget of one row; what it emitted before a preemption counts."""
    thinking, row = admission.sampling.restrictions.thinking, admission.row
    if not thinking.is_wanted:
        return
    tables.opens[row] = thinking.opens
    tables.closes[row] = thinking.closes
    tables.until[row] = thinking.until
    tables.has_begun[row] = thinking.is_open or thinking.opens in admission.output
    tables.has_ended[row] = thinking.closes in admission.output


def clear_words_(tables: WordTables, rows: torch.Tensor) -> None:  # [n] int64
    """Forget the words and the outputs of some rows."""
    tables.words.index_fill_(0, rows, NO_TOKEN)
    tables.outputs.index_fill_(0, rows, -1)


def write_allowed_(bits: torch.Tensor, restrictions: Restrictions) -> None:  # [words] int32
    """Write the mask of one row, which allows all tokens."""
    if not restrictions.allowed:
        return
    masks = [0] * bits.shape[0]
    for token in restrictions.allowed:
        masks[token // 32] |= 1 << (token % 32)
    signed = [mask - 2**32 if mask >= 2**31 else mask for mask in masks]
    bits.copy_(upload(signed, torch.int32, bits.device))


def write_words_(tables: WordTables, admission: RowAdmission) -> None:
    """Write the words of one row, which has none, and what it emitted before a preemption."""
    bad_words = admission.sampling.restrictions.bad_words
    if not bad_words:
        return
    words, outputs = tables.words[admission.row], tables.outputs[admission.row]
    assert len(bad_words) <= MAX_BAD_WORDS, "the API rejects more"
    padded = [_padded(word) for word in bad_words]
    words[: len(padded)] = upload(padded, torch.int32, words.device)
    if latest := admission.output[-_CONTEXT:]:
        outputs[-len(latest) :] = upload(latest, torch.int64, outputs.device)


def _padded(word: Sequence[int]) -> list[int]:
    assert 0 < len(word) <= MAX_BAD_WORD_TOKENS, "the API rejects longer words"
    return [*repeat(ANY_TOKEN, MAX_BAD_WORD_TOKENS - len(word)), *word]
