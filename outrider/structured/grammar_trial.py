"""Matches texts of a grammar after compiling it, to find here whether that is slow or crashes.

Ambiguous grammars compile fast, but matching them takes longer with every token.
"""

import itertools
import random
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from outrider.errors import RequestError
from outrider.structured.grammar_bounds import NAMES
from outrider.wire.grammar_spec import GrammarSpec

if TYPE_CHECKING:
    import xgrammar

_NUM_RANDOM = 300  # tokens of the random text
_NUM_REPEATS = 64  # of one token in a run
_LONGEST_RUN = 256  # bytes
_MAX_CALL_S = 0.1  # of CPU time, for one token with its mask
_MAX_RUNS_S = 0.3  # of CPU time, for all runs


def try_grammar(compiled: Any, spec: GrammarSpec) -> None:
    """Raise RequestError if matching a random text, or runs of one token, takes long."""
    trial = _Trial(compiled, NAMES[spec.kind])
    trial.match_random_text()
    end_s = time.thread_time() + _MAX_RUNS_S
    for first, repeated in _pairs(compiled.tokenizer_info.decoded_vocab, spec.text):
        if time.thread_time() > end_s:
            return
        trial.match_run(first, repeated)


class _Trial:
    """Owns a matcher that is used again and again."""

    def __init__(self, compiled: "xgrammar.CompiledGrammar", name: str) -> None:
        import numpy as np
        import xgrammar

        info = compiled.tokenizer_info
        self._end = (info.special_token_ids or [0])[0]
        self._matcher = xgrammar.GrammarMatcher(compiled, override_stop_tokens=[self._end])
        self._mask = np.zeros((1, -(-info.vocab_size // 32)), dtype=np.int32)
        self._name = name
        self._vocab = info.decoded_vocab

    def match_random_text(self) -> None:
        import numpy as np

        rng, length = random.Random(0), 0
        for _ in range(_NUM_RANDOM):
            began_s = time.thread_time()
            self._matcher.fill_next_token_bitmask(self._mask)
            (allowed,) = np.unpackbits(self._mask.view(np.uint8), bitorder="little").nonzero()
            onward = allowed[(allowed != self._end) & (allowed < len(self._vocab))]
            if onward.size:
                length += self._matcher.accept_token(int(onward[rng.randrange(onward.size)]))
            elif length:  # the text is complete: go back one token, so that a longer text is tried
                self._matcher.rollback(1)
                length -= 1
            self._check(began_s)

    def match_run(self, first: Sequence[int], repeated: int) -> None:
        """Match some first tokens, then one token again and again, and make the mask there."""
        self._matcher.reset()
        if not all(self._matcher.accept_token(token) for token in first):
            return
        num_bytes = 0
        for _ in range(_NUM_REPEATS):
            began_s = time.thread_time()
            if num_bytes > _LONGEST_RUN or not self._matcher.accept_token(repeated):
                break
            num_bytes += len(self._vocab[repeated])
            self._check(began_s)
        if num_bytes and not self._matcher.is_terminated():
            began_s = time.thread_time()
            self._matcher.fill_next_token_bitmask(self._mask)
            self._check(began_s)

    def _check(self, began_s: float) -> None:
        if time.thread_time() - began_s > _MAX_CALL_S:
            raise RequestError(f"the {self._name} is too ambiguous: matching it takes too long")


def _pairs(vocab: Sequence[bytes], text: str) -> list[tuple[tuple[int, ...], int]]:
    """First tokens and a repeated token, for all bytes that the grammar names, and two others.

    A branch of a grammar begins with a byte that the grammar names, or with one that stands for
    all bytes that it does not name. The order is random, as there may be no time for all pairs.
    """
    named = set(text.encode())
    tried = named.union([each for each in b"~^qz0 " if each not in named][:2])
    singles, longest = _tokens_of(vocab, tried)
    firsts = [(), *((token,) for token in singles.values())]
    pairs = list(itertools.product(firsts, longest.values()))
    random.Random(0).shuffle(pairs)
    return pairs


def _tokens_of(vocab: Sequence[bytes], wanted: set[int]) -> tuple[dict[int, int], dict[int, int]]:
    """By byte: the token that is this byte alone, and the longest token that repeats it."""
    single: dict[int, int] = {}
    longest: dict[int, int] = {}
    for token, piece in enumerate(vocab):
        if piece and piece[0] in wanted and piece.count(piece[0]) == len(piece):
            byte = piece[0]
            if len(piece) == 1:
                single[byte] = token
            if byte not in longest or len(piece) > len(vocab[longest[byte]]):
                longest[byte] = token
    return single, longest
