"""Grammars without a library, for machines that have none: the answer is one of a few words."""

import json
from concurrent.futures import Future

from outrider.structured.grammar_matcher import WORD, bit_of
from outrider.wire.grammar_spec import GrammarSpec
from support.tiny_vocabulary import TINY


def one_of(words: list[str]) -> GrammarSpec:
    return GrammarSpec(kind="ebnf", text=json.dumps(words))


class ChoiceGrammars:
    """Knows every grammar that `one_of` makes."""

    def check(self, spec):
        pass

    def compile(self, spec):
        ready: Future[str] = Future()
        ready.set_result(spec.text)
        return ready


class ChoiceStates:
    """Stands in for `MatcherStates`."""

    def make(self, grammar):
        words = [word.encode() for word in json.loads(grammar.spec.text)]
        return ChoiceState(words, grammar.ends, TINY.pieces)


class ChoiceState:
    """A list of tokens, read again for every mask."""

    def __init__(self, words, ends, pieces):
        self._words, self._ends, self._pieces = words, ends, pieces
        self._tokens, self._num_tried = [], 0

    def begin(self):
        assert not self._num_tried

    def try_token(self, token):
        if token not in self._allowed():
            return False
        self._tokens.append(token)
        self._num_tried += 1
        return True

    def rollback_to(self, num):
        del self._tokens[len(self._tokens) - self._num_tried + num :]
        self._num_tried = num

    def commit(self, num):
        self.rollback_to(num)
        self._num_tried = 0

    def abort(self):
        self.commit(0)

    def fill_mask(self, bits, place):
        bits[place] = 0
        for token in self._allowed():
            bits[place, token // WORD] |= bit_of(token)

    def _allowed(self):
        text = b"".join(self._pieces[token] for token in self._tokens)
        if set(self._tokens) & set(self._ends):
            return list(self._ends)
        longer = [
            token
            for token, piece in enumerate(self._pieces)
            if piece and any(word.startswith(text + piece) for word in self._words)
        ]
        return longer + (list(self._ends) if text in self._words else [])
