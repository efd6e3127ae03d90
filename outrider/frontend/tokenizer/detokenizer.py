"""Streamed token ids to streamed text: never half a character, never a change of mind."""

import codecs
from collections.abc import Sequence

from outrider.frontend.tokenizer.tokenizer import NoTokenizer, Tokenizer


class Detokenizer:
    """Owns the bytes at the end of one answer that are not a character yet: at most three.

    All pushes and `finish` together give what decoding prompt and answer at once gives after the
    prompt. Bytes that cannot become a character come out as U+FFFD, at the latest in `finish`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | NoTokenizer,
        *,
        skip_special: bool,
        prompt_tail: Sequence[
            int
        ] = (),  # the last few tokens do; they show how the answer joins on
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._opens_text = True
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.push(prompt_tail)

    def push(self, tokens: Sequence[int]) -> str:
        """The text that these tokens complete."""
        return self._utf8.decode(b"".join(map(self._bytes_of, tokens)))

    def finish(self) -> str:
        """The rest: U+FFFD if the last character was never completed."""
        return self._utf8.decode(b"", final=True)

    def _bytes_of(self, token: int) -> bytes:
        if not self._tokenizer.is_shown(token, skip_special=self._skip_special):
            return b""
        if self._opens_text:
            self._opens_text = False
            return self._tokenizer.first_bytes(token)
        return self._tokenizer.token_bytes(token)
