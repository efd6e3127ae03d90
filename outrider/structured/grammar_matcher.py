"""Grammar states by xgrammar, which is imported when the first row asks for a grammar."""

from collections import OrderedDict
from typing import TYPE_CHECKING

import torch

from outrider.structured.grammar_cache import MAX_KEPT, Grammars
from outrider.structured.grammar_compiler import describe_vocabulary
from outrider.wire.grammar_spec import Grammar, GrammarSpec

if TYPE_CHECKING:
    import xgrammar

WORD = 32  # tokens per integer of a mask


class MatcherState:
    """Owns one matcher. After the end of its text, a row may only choose an end again."""

    def __init__(self, compiled: "xgrammar.CompiledGrammar", ends: tuple[int, ...]) -> None:
        import xgrammar

        self._matcher = xgrammar.GrammarMatcher(compiled, override_stop_tokens=list(ends))
        self._ends = ends
        self._silent = frozenset(compiled.tokenizer_info.special_token_ids).difference(ends)
        self._vocab_size = compiled.tokenizer_info.vocab_size
        self._num_tried = 0
        self._num_past = 0  # of all tokens so far, ends that the matcher was not told about

    def begin(self) -> None:
        assert not self._num_tried, "what was tried before is kept or forgotten first"

    def ride(self, token: int) -> bool:
        if token in self._silent:  # the matcher would refuse it, too, and complain
            return False
        if self._num_past or self._matcher.is_terminated() or self._is_stuck(token):
            if token not in self._ends:
                return False
            self._num_past += 1
        elif not self._matcher.accept_token(token):
            return False
        self._num_tried += 1
        return True

    def retreat(self, num: int) -> None:
        surplus = self._num_tried - num
        assert surplus >= 0, "nothing can be taken back that was not tried"
        past = min(surplus, self._num_past)
        self._num_past -= past
        if surplus > past:
            self._matcher.rollback(surplus - past)
        self._num_tried = num

    def commit(self, num: int) -> None:
        self.retreat(num)
        self._num_tried = 0

    def abort(self) -> None:
        self.commit(0)

    def allow(self, bits: torch.Tensor, place: int) -> None:
        if not (self._num_past or self._matcher.is_terminated()):
            self._matcher.fill_next_token_bitmask(bits, place)
            if bits[place].any():
                return
        bits[place].zero_()  # the end, or a dead one: no token spells what the grammar wants
        for token in self._ends:
            bits[place, token // WORD] |= bit_of(token)

    def _is_stuck(self, token: int) -> bool:
        """Whether this is an end in the middle of a text that cannot go on."""
        if token not in self._ends or self._matcher.is_completed():
            return False
        bits = torch.zeros((1, -(-self._vocab_size // WORD)), dtype=torch.int32)
        self._matcher.fill_next_token_bitmask(bits, 0)
        return not bits.any()


class MatcherStates:
    """Owns compiled grammars in the form that matchers use, the ones used last."""

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self._vocabulary = describe_vocabulary(grammars.vocabulary())
        self._compiled: OrderedDict[GrammarSpec, xgrammar.CompiledGrammar] = OrderedDict()

    def make(self, grammar: Grammar) -> MatcherState:
        """A state at the beginning of a text."""
        import xgrammar

        if grammar.spec not in self._compiled:
            text = self._grammars.order(grammar.spec).result()
            self._compiled[grammar.spec] = xgrammar.CompiledGrammar.deserialize_json(
                text, self._vocabulary
            )
        self._compiled.move_to_end(grammar.spec)
        if len(self._compiled) > MAX_KEPT:
            self._compiled.popitem(last=False)
        return MatcherState(self._compiled[grammar.spec], grammar.ends)


def bit_of(token: int) -> int:
    """The bit of a token in its word, as a signed integer."""
    bit = 1 << token % WORD
    return bit - (1 << WORD) if bit >> (WORD - 1) else bit
