"""The draft vocabulary: the tokens that the target emits most often."""

from collections import Counter
from collections.abc import Iterable

import torch

from outrider.errors import ConfigError


def check_draft_vocab(size: int, *, vocab: int) -> None:
    """Refuse more tokens than the target has. Called before answers are made, which takes hours."""
    if size > vocab:
        raise ConfigError(f"--draft-vocab {size} exceeds the target's {vocab} tokens; lower it")


def choose_draft_tokens(
    counts: Counter[int], *, size: int, vocab: int, always: Iterable[int]
) -> torch.Tensor:  # [size] int64, increasing
    """The `size` most frequent tokens, and first those of `always` that occur.

    Of equally frequent tokens the smaller id wins.
    """
    check_draft_vocab(size, vocab=vocab)
    first = [token for token in sorted(set(always)) if counts[token]]
    ranked = sorted(range(vocab), key=lambda token: (-counts[token], token))
    chosen = list(dict.fromkeys([*first, *ranked]))[:size]
    return torch.tensor(sorted(chosen))


def coverage(counts: Counter[int], tokens: torch.Tensor) -> float:  # tokens [draft_vocab]
    """Share of the target's answer tokens that the head can propose."""
    total = sum(counts.values())
    return sum(counts[token] for token in tokens.tolist()) / max(total, 1)
