"""Streamed token ids to streamed text: whole characters only, cut at stop strings."""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class NewText:
    """The text that one token made certain."""

    text: str  # safe to show: no stop string can begin in it
    matched: str  # the stop string that ends the text, or ""


class Detokenizer:
    """Owns the bytes at the end of one output that are not a character yet: at most three.

    All pushes and `finish` together give what decoding prompt and output at once gives after the
    prompt. Bytes that cannot become a character come out as U+FFFD, at the latest in `finish`.
    An output that adds no bytes has no text, even after a prompt that ends inside a character.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | NoTokenizer,
        *,
        skip_special: bool,
        prompt_tail: Sequence[int] = (),  # last tokens of the prompt, before the output
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._opens_text = True
        self._has_bytes = False  # of the output; the prompt's do not count
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.push(prompt_tail)
        self._has_bytes = False

    def push(self, tokens: Sequence[int]) -> str:
        """The text that these tokens complete."""
        raw = b"".join(map(self._bytes_of, tokens))
        self._has_bytes = self._has_bytes or bool(raw)
        return self._utf8.decode(raw)

    def finish(self) -> str:
        """The rest: U+FFFD if the last character was never completed."""
        return self._utf8.decode(b"", final=True) if self._has_bytes else ""

    def _bytes_of(self, token: int) -> bytes:
        if not self._tokenizer.is_shown(token, skip_special=self._skip_special):
            return b""
        if self._opens_text:
            self._opens_text = False
            return self._tokenizer.first_bytes(token)
        return self._tokenizer.token_bytes(token)


class StopStrings:
    """Owns the end of the text that could still become a stop string.

    The match that completes first wins, and of those the longest: this depends on the text alone,
    not on how tokens divide it.
    """

    def __init__(self, stops: tuple[str, ...], *, include: bool) -> None:
        assert "" not in stops, "`SamplingParams` refuses an empty stop string"
        self._stops = stops
        self._fallbacks = tuple(map(fallbacks, stops))
        self._lengths = [0] * len(stops)  # of the end of the text that begins each stop string
        self._include = include
        self._held = ""
        self._is_over = False

    def push(self, text: str) -> NewText:
        """Add the text of one token, so that the caller knows at which token a match completed."""
        assert not self._is_over, "nothing follows a stop string"
        if not self._stops:
            return NewText(text=text, matched="")
        num_held, text = len(self._held), self._held + text
        for place in range(num_held, len(text)):
            if matched := self._advance(text[place]):
                self._held, self._is_over = "", True
                end = place + 1 if self._include else place + 1 - len(matched)
                return NewText(text=text[:end], matched=matched)
        shown = len(text) - max(self._lengths)
        self._held = text[shown:]
        return NewText(text=text[:shown], matched="")

    def _advance(self, char: str) -> str:
        """The longest stop string that this character completes, or ""."""
        matched = ""
        for index, stop in enumerate(self._stops):
            length, shorter = self._lengths[index], self._fallbacks[index]
            while length and stop[length] != char:
                length = shorter[length]
            length += stop[length] == char
            self._lengths[index] = length
            if length == len(stop) > len(matched):
                matched = stop
        return matched

    def finish(self) -> str:
        """The text that was held back and did not become a stop string."""
        held, self._held, self._is_over = self._held, "", True
        return held


class StreamedText:
    """Turns the tokens of one output into text, and ends the text at a stop string."""

    def __init__(
        self, detokenizer: Detokenizer, stops: StopStrings, *, num_unscanned: int = 0
    ) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self._num_unscanned = num_unscanned  # first tokens in which stop strings do not count

    def push(self, token: int) -> NewText:
        """The text that this token makes certain."""
        text = self._detokenizer.push((token,))
        if self._num_unscanned > 0:
            self._num_unscanned -= 1
            return NewText(text=text, matched="")
        return self._stops.push(text)

    def finish(self) -> NewText:
        """The text that was held back."""
        new = self._stops.push(self._detokenizer.finish())
        if new.matched:
            return new
        return NewText(text=new.text + self._stops.finish(), matched="")


@lru_cache(maxsize=256)
def fallbacks(stop: str) -> tuple[int, ...]:
    """The failure table of Knuth, Morris and Pratt, which makes matching linear in the text.

    Entry k is the length of the longest end of `stop[:k]` that begins `stop`, other than itself.
    """
    table, length = [0, 0], 0
    for char in stop[1:]:
        while length and stop[length] != char:
            length = table[length]
        length += stop[length] == char
        table.append(length)
    return tuple(table)
