"""Grammars over the vocabulary of the tiny models, and plain decoding with a grammar."""

import re
from dataclasses import replace

import numpy as np
import torch

from outrider.structured.grammar_matcher import WORD
from outrider.structured.grammar_state import advance
from outrider.wire.grammar_spec import Grammar
from outrider.wire.row_sampling import Ban, RowSampling
from support.reference import choose
from support.tiny_vocabulary import TINY, VOCAB


def spelled(tokens: list[int]) -> str:
    return b"".join(TINY.pieces[token] for token in tokens).decode()


def is_prefix_of(spec: str, text: str) -> bool:
    """Whether a cut answer could still become a valid one; for grammars that a regex describes."""
    if spec == "choice":
        return any(whole.startswith(text) for whole in ("red", "green", "green abc", "12"))
    if spec == "regex":
        unit = r"(?:ab|bc|[0-9]{2,3})"
        return bool(re.fullmatch(rf"{unit}*(?:{unit}(?:x|y|yz)?|a|b|[0-9])?", text))
    return True


class PlainMasks:
    """Which tokens may follow a text: a fresh matcher reads the whole text each time."""

    def __init__(self, states) -> None:
        self._states = states  # such as MatcherStates

    def allowed(self, grammar: Grammar, output: list[int]) -> np.ndarray:
        state = self._states.make(grammar)
        advance(state, output)
        bits = np.zeros((1, -(-VOCAB // WORD)), dtype=np.int32)
        state.fill_mask(bits, 0)
        words = bits[0].tolist()
        return np.array([words[t // WORD] >> t % WORD & 1 for t in range(VOCAB)], dtype=bool)


def decode_plainly(
    theirs, masks: PlainMasks, prompt, sampling: RowSampling, *, max_tokens: int, stop_ids
) -> list[int]:
    """The reference decoder with a grammar; a ban does not count where no other token is left."""
    tokens = list(prompt)
    without_ban = replace(sampling, ban=Ban())
    for _ in range(max_tokens):
        with torch.no_grad():
            logits = theirs(torch.tensor([tokens])).logits[0, -1].double().numpy()
        allowed = masks.allowed(sampling.grammar, tokens[len(prompt) :])
        if len(tokens) < sampling.ban.before:
            rest = allowed.copy()
            rest[list(sampling.ban.tokens)] = False
            allowed = rest if rest.any() else allowed
        logits[~allowed] = -np.inf
        tokens.append(choose(logits, without_ban, tokens, len(prompt)))
        if tokens[-1] in stop_ids:
            break
    return tokens[len(prompt) :]
