"""Ids of embeddings in the keys of the prefix cache: equal content has equal ids."""

import hashlib
from collections import OrderedDict

from outrider.wire.embedded_span import EmbeddedSpan
from outrider.wire.image_span import ImageSpan

_MOST_IDS = 2**31 - 2  # keys hold 32 bits; no token has a negative id, and -1 is the end of prompts


class ContentIds:
    """Owns the negative id of every embedding that the prefix cache may still know.

    An id belongs to one content, told apart by 32 bytes of a hash: no client can make an embedding
    that another one's prefix is found by. A content that was forgotten gets a new id: its pages are
    not found again, and never mistaken. After 2**31 contents, ids begin again; pages of that age
    were evicted, or their contents were seen since.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._ids: OrderedDict[bytes, int] = OrderedDict()  # by digest, the latest last
        self._num_given = 0

    def ids_of(self, span: EmbeddedSpan | ImageSpan) -> list[int]:
        return [self._id_of(span.row(index)) for index in range(len(span))]

    def _id_of(self, content: bytes) -> int:
        digest = hashlib.sha256(content).digest()
        if digest not in self._ids:
            self._ids[digest] = -2 - self._num_given % _MOST_IDS
            self._num_given += 1
            if len(self._ids) > self._most:
                self._ids.popitem(last=False)
        self._ids.move_to_end(digest)
        return self._ids[digest]
