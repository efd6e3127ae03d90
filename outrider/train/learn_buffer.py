"""The texts that a server learns from. They are in memory only, and never written."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from outrider.train.documents import Document

_HELD_BACK = 8  # one text in this many is never trained on: heads are compared with it
_FIRST_HELD = 3  # a number below it: small buffers need one, too
_ENTRY_BYTES = 256  # of an entry besides its tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferedText:
    """A part of one request: the end of its prompt, and its answer."""

    number: int  # in order of arrival
    tokens: npt.NDArray[np.int32]
    num_prompt: int
    temperature: float

    @property
    def num_bytes(self) -> int:
        return int(self.tokens.nbytes) + _ENTRY_BYTES

    @property
    def is_held_back(self) -> bool:
        return self.number % _HELD_BACK == _FIRST_HELD

    def document(self) -> Document:
        return Document(
            id=str(self.number),
            source="served",
            tokens=tuple(self.tokens.tolist()),
            answers=((self.num_prompt, len(self.tokens)),),
            temperature=self.temperature,
            seed=0,
        )


class LearnBuffer:
    """Owns the newest texts that fit into its bytes. The oldest leave first."""

    def __init__(self, max_bytes: int, *, length: int) -> None:
        self._max_bytes = max_bytes
        self._length = length  # tokens of a text; longer ones are cut
        self._texts: deque[BufferedText] = deque()
        self.num_bytes = 0
        self.num_added = 0

    def __len__(self) -> int:
        return len(self._texts)

    def add(self, tokens: tuple[int, ...], num_prompt: int, temperature: float) -> None:
        """Take a text in. One with fewer than two answer tokens teaches nothing."""
        first = max(0, num_prompt - self._length // 2)
        part = np.array(tokens[first : first + self._length], dtype=np.int32)
        text = BufferedText(
            number=self.num_added,
            tokens=part,
            num_prompt=num_prompt - first,
            temperature=temperature,
        )
        if len(part) - text.num_prompt < 2 or text.num_bytes > self._max_bytes:
            return
        self._texts.append(text)
        self.num_added += 1
        self.num_bytes += text.num_bytes
        while self.num_bytes > self._max_bytes:
            self.num_bytes -= self._texts.popleft().num_bytes

    def sample(self, num_tokens: int, *, seed: int) -> list[Document]:
        """Texts to train on, about as many tokens in all."""
        texts = [each for each in self._texts if not each.is_held_back]
        order = np.random.default_rng(seed).permutation(len(texts))
        return _until((texts[index] for index in order), num_tokens)

    def held_back(self, num_tokens: int) -> list[Document]:
        """The newest texts that are never trained on, about as many tokens in all."""
        texts = (each for each in reversed(self._texts) if each.is_held_back)
        return _until(texts, num_tokens)


def _until(texts: Iterable[BufferedText], num_tokens: int) -> list[Document]:
    chosen: list[Document] = []
    total = 0
    for text in texts:
        if total >= num_tokens:
            break
        chosen.append(text.document())
        total += len(text.tokens)
    return chosen
