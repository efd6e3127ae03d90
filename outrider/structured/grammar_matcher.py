"""Grammar states by xgrammar, which only matcher processes import."""

from typing import TYPE_CHECKING

from outrider.structured.shared_masks import Masks

if TYPE_CHECKING:
    import xgrammar

WORD = 32  # tokens per integer of a mask


class MatcherState:
    """Owns one matcher. Once the text has ended, only end tokens are allowed."""

    def __init__(self, compiled: "xgrammar.CompiledGrammar", ends: tuple[int, ...]) -> None:
        import xgrammar

        self._matcher = xgrammar.GrammarMatcher(compiled, override_stop_tokens=list(ends))
        self._ends = ends
        self._unspelled = frozenset(compiled.tokenizer_info.special_token_ids).difference(ends)
        self._num_tried = 0
        self._num_after_end = 0  # end tokens that the matcher has not seen, as its text is over

    def begin(self) -> None:
        assert not self._num_tried, "commit or abort comes first"

    def try_token(self, token: int) -> bool:
        if token in self._unspelled:  # the matcher would refuse it, too, but log a warning
            return False
        if self._num_after_end or self._matcher.is_terminated():
            if token not in self._ends:
                return False
            self._num_after_end += 1
        elif not self._matcher.accept_token(token):
            return False
        self._num_tried += 1
        return True

    def rollback_to(self, num: int) -> None:
        surplus = self._num_tried - num
        assert surplus >= 0, "only tokens that were tried can be undone"
        after_end = min(surplus, self._num_after_end)
        self._num_after_end -= after_end
        if surplus > after_end:
            self._matcher.rollback(surplus - after_end)
        self._num_tried = num

    def commit(self, num: int) -> None:
        self.rollback_to(num)
        self._num_tried = 0

    def abort(self) -> None:
        self.commit(0)

    def fill_mask(self, bits: Masks, place: int) -> None:
        """Write what may come next: no token at all where none can continue the text."""
        if not (self._num_after_end or self._matcher.is_terminated()):
            self._matcher.fill_next_token_bitmask(bits, place)
            return
        bits[place] = 0
        for token in self._ends:
            bits[place, token // WORD] |= bit_of(token)


def bit_of(token: int) -> int:
    """The bit of a token in its 32-bit word, as a signed integer."""
    bit = 1 << token % WORD
    return bit - (1 << WORD) if bit >> (WORD - 1) else bit
