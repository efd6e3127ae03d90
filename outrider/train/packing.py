"""Documents packed into sequences of one length, and which rows of them are trained.

    tokens     P P P A A A | P P A A A A A . .      P prompt, A answer, . padding
    documents  0 0 0 0 0 0 | 1 1 1 1 1 1 1 - -      attention does not cross the bar
    positions  0 1 2 3 4 5 | 0 1 2 3 4 5 6 0 1

The row at t reads the target's states at t and the token at t + 1, and predicts the token at t + 2.
At depth k it reads its own last state and predicts the token at t + 2 + k.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from outrider.errors import ConfigError
from outrider.train.documents import Document

PADDING = -1  # document number of positions without a document
AHEAD = 2  # distance from the position of a row to the first token that it predicts

_OPEN_BINS = 64  # sequences that are being filled at the same time

Ints = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedDocuments:
    """Sequences of equal length."""

    tokens: Ints  # [sequences, length]
    documents: Ints  # [sequences, length] number within the sequence, or PADDING
    positions: Ints  # [sequences, length] within the document
    is_answer: Bools  # [sequences, length] the token is part of an answer of the target
    is_greedy: Bools  # [sequences, length] the document was answered at temperature 0

    def __len__(self) -> int:
        return int(self.tokens.shape[0])

    def take(self, index: npt.NDArray[np.int64]) -> "PackedDocuments":  # [chosen]
        return PackedDocuments(
            tokens=self.tokens[index],
            documents=self.documents[index],
            positions=self.positions[index],
            is_answer=self.is_answer[index],
            is_greedy=self.is_greedy[index],
        )


def padded(packed: PackedDocuments, size: int) -> PackedDocuments:
    """The same with empty sequences appended, up to a size: kernels are compiled for one size."""
    blank = ((0, size - len(packed)), (0, 0))
    return PackedDocuments(
        tokens=np.pad(packed.tokens, blank),
        documents=np.pad(packed.documents, blank, constant_values=PADDING),
        positions=np.pad(packed.positions, blank),
        is_answer=np.pad(packed.is_answer, blank),
        is_greedy=np.pad(packed.is_greedy, blank),
    )


def pack_documents(documents: Sequence[Document], *, length: int, seed: int) -> PackedDocuments:
    """Every document in one sequence. A document longer than a sequence is cut."""
    order = list(documents)
    random.Random(seed).shuffle(order)
    bins = _first_fit(order, length)
    if not bins:
        raise ConfigError(
            f"no document has an answer to train on within {length} tokens; raise --length, or "
            "give more or other prompts"
        )
    blank = np.zeros((len(bins), length), dtype=np.int32)
    packed = PackedDocuments(
        tokens=blank,
        documents=np.full_like(blank, PADDING),
        positions=np.tile(np.arange(length, dtype=np.int32), (len(bins), 1)),
        is_answer=np.zeros(blank.shape, dtype=np.bool_),
        is_greedy=np.zeros(blank.shape, dtype=np.bool_),
    )
    for row, members in enumerate(bins):
        start = 0
        for number, document in enumerate(members):
            start += _place(packed, document, row=row, start=start, number=number)
        packed.positions[row, start:] = np.arange(length - start)
    return packed


def trained_rows(packed: PackedDocuments, *, depth: int) -> Bools:  # [depth, sequences, length]
    """Whether a row is trained at each depth.

    A row is trained while all tokens that it has predicted belong to one answer of its own
    document. The first token of the answer counts too.
    """
    rows = np.ones((depth, *packed.tokens.shape), dtype=np.bool_)
    alive = np.ones(packed.tokens.shape, dtype=np.bool_)
    for step in range(depth):
        alive = alive & _ahead(packed, AHEAD + step)
        rows[step] = alive
    return rows


def reached_rows(packed: PackedDocuments) -> Bools:  # [sequences, length]
    """Rows where decoding starts a draft round: the token that they read belongs to an answer."""
    return _ahead(packed, AHEAD - 1)


def _ahead(packed: PackedDocuments, distance: int) -> Bools:
    """Whether the token at this distance belongs to an answer of the same document."""
    is_ahead = np.zeros_like(packed.is_answer)
    same = packed.documents[:, distance:] == packed.documents[:, :-distance]
    is_ahead[:, :-distance] = packed.is_answer[:, distance:] & same
    return is_ahead


def _first_fit(documents: Sequence[Document], length: int) -> list[list[Document]]:
    """The documents of each sequence. A document goes to the first open sequence with room."""
    full: list[list[Document]] = []
    opened: list[tuple[int, list[Document]]] = []  # tokens left, documents
    for document in documents:
        size = min(len(document.tokens), length)
        if not any(start + 1 < size for start, _ in document.answers):
            continue  # no answer token is left that a row can predict
        place = next((i for i, (left, _) in enumerate(opened) if left >= size), len(opened))
        if place == len(opened):
            opened.append((length, []))
        left, members = opened[place]
        members.append(document)
        opened[place] = (left - size, members)
        if len(opened) > _OPEN_BINS:
            fullest = min(range(len(opened)), key=lambda i: opened[i][0])
            full.append(opened.pop(fullest)[1])
    return full + [members for _, members in opened]


def _place(
    packed: PackedDocuments, document: Document, *, row: int, start: int, number: int
) -> int:
    """Write one document into a sequence. Returns how many tokens it took."""
    size: int = min(len(document.tokens), packed.tokens.shape[1] - start)
    where = slice(start, start + size)
    packed.tokens[row, where] = document.tokens[:size]
    packed.documents[row, where] = number
    packed.positions[row, where] = np.arange(size)
    packed.is_greedy[row, where] = document.temperature == 0
    for first, stop in document.answers:
        packed.is_answer[row, start + min(first, size) : start + min(stop, size)] = True
    return size
