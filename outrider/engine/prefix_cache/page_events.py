"""What a radix tree reports about its pages, and the events that routers get from it."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

from outrider.engine.prefix_cache.token_key import TokenKey
from outrider.wire.adapter import adapter_name
from outrider.wire.cache_events import (
    NO_PARENT,
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CacheEvent,
)

ROOT_PAGE = 0  # the parent of first pages: page 0 is padding and is never cached
_HASH_BYTES = 8
_SALT_BYTES = 16


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldPage:
    """A cached page as routers know it."""

    hash: int = NO_PARENT
    adapter: str = ""  # the name of the one that computed it; only first pages have a salt
    is_told: bool = True


class PageEvents:
    """Owns the hash of every cached page, and the events since they were last taken.

    Embeddings are known by ids that mean something in this process alone. Pages with such ids, and
    pages after them, are not told.
    """

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self._pages = {ROOT_PAGE: ToldPage()}  # by page id
        # An earlier process may have told of pages that are lost.
        self._events: list[CacheEvent] = [CacheCleared()]

    def take(self) -> list[CacheEvent]:
        events, self._events = self._events, []
        return events

    def note_stored(self, parent: int, pages: Sequence[int], key: TokenKey) -> None:
        size, first = self.page_size, self._pages[parent]
        last, hashes = first, []
        for place, page in enumerate(pages):
            last = self._pages[page] = _next_page(last, key[place * size : (place + 1) * size])
            if last.is_told:
                hashes.append(last.hash)
        if not hashes:
            return
        self._events.append(
            BlocksStored(
                hashes=tuple(hashes),
                parent=first.hash,
                tokens=tuple(key.tokens[key.start : key.start + len(hashes) * size]),
                adapter=last.adapter,
                # Never the salt itself: it has a tenant's own text, and paths of this machine.
                salt=blake2b(key.salt, digest_size=_SALT_BYTES).hexdigest() if key.salt else "",
            )
        )

    def note_removed(self, pages: Sequence[int]) -> None:
        removed = [self._pages.pop(page) for page in pages]
        hashes = tuple(each.hash for each in removed if each.is_told)
        if len(self._pages) == 1:  # the root alone is left
            self._events.append(CacheCleared())
        elif hashes:
            self._events.append(BlocksRemoved(hashes))


def _next_page(last: ToldPage, key: TokenKey) -> ToldPage:
    """A page after another one. Its key has the tokens that draft KV looks ahead to."""
    return ToldPage(
        hash=_hash(last.hash, key.head(len(key))),
        adapter=adapter_name(key.salt) or last.adapter,
        is_told=last.is_told and min(key.tokens[key.start : key.stop]) >= 0,
    )


def _hash(parent: int, head: bytes) -> int:
    digest = blake2b(head, digest_size=_HASH_BYTES, key=parent.to_bytes(_HASH_BYTES, "big"))
    return int.from_bytes(digest.digest(), "big")
