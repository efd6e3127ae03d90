"""What a radix tree reports about its pages, and the events that routers get from it."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol

from outrider.engine.prefix_cache.token_key import TokenKey
from outrider.wire.cache_events import (
    NO_PARENT,
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CacheEvent,
)

ROOT_PAGE = 0  # the parent of first pages: page 0 is padding and is never cached
_HASH_BYTES = 8


class PageListener(Protocol):
    """Hears of every page that enters or leaves the tree."""

    def note_stored(self, parent: int, pages: Sequence[int], key: TokenKey) -> None:
        """Pages are cached after the page `parent`; `key` are their units."""
        ...

    def note_removed(self, pages: Sequence[int]) -> None: ...


class NoPageEvents:
    """Records nothing: no router listens."""

    def note_stored(self, parent: int, pages: Sequence[int], key: TokenKey) -> None:
        del parent, pages, key

    def note_removed(self, pages: Sequence[int]) -> None:
        del pages


class PageEvents:
    """Owns the hash of every cached page, and the events since they were last taken."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self._hashes = {ROOT_PAGE: NO_PARENT}  # by page id
        # An earlier process may have told of pages that are lost.
        self._events: list[CacheEvent] = [CacheCleared()]

    def take(self) -> list[CacheEvent]:
        events, self._events = self._events, []
        return events

    def note_stored(self, parent: int, pages: Sequence[int], key: TokenKey) -> None:
        size, first = self.page_size, self._hashes[parent]
        last, hashes = first, []
        for place, page in enumerate(pages):
            # The head has the tokens that draft KV looks ahead to, and the salt.
            head = key[place * size : (place + 1) * size].head(size)
            last = self._hashes[page] = _hash(last, head)
            hashes.append(last)
        self._events.append(
            BlocksStored(
                hashes=tuple(hashes),
                parent=first,
                tokens=tuple(key.tokens[key.start : key.start + len(pages) * size]),
                salt=key.salt.decode(errors="replace"),  # that of an adapter is no text
            )
        )

    def note_removed(self, pages: Sequence[int]) -> None:
        removed = BlocksRemoved(tuple(self._hashes.pop(page) for page in pages))
        is_empty = len(self._hashes) == 1  # the root alone is left
        self._events.append(CacheCleared() if is_empty else removed)


def _hash(parent: int, head: bytes) -> int:
    digest = blake2b(head, digest_size=_HASH_BYTES, key=parent.to_bytes(_HASH_BYTES, "big"))
    return int.from_bytes(digest.digest(), "big")
