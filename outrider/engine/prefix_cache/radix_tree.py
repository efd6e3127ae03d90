"""A radix tree of cached pages. It knows which tokens a page holds and which pages are in use."""

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from outrider.engine.prefix_cache.page_events import ROOT_PAGE, NoPageEvents, PageListener
from outrider.engine.prefix_cache.token_key import TokenKey

LONG_EDGE = 4096  # units; to grow an edge is to copy it, which must stay near a microsecond


@dataclass(slots=True, kw_only=True, eq=False)
class Node:
    """An edge of whole pages and what follows it. Everything in use is locked up to the root."""

    key: TokenKey  # the units of this edge
    pages: list[int]  # where their KV is, page_size units each
    locks: int  # leases that use these pages
    used_at: int  # clock of the last release
    is_queued: bool = False  # has an entry in the eviction queue, possibly an outdated one
    parent: "Node" = field(init=False)  # the root has none
    children: dict[bytes, "Node"] = field(default_factory=dict)  # by the first page of their edge


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixMatch:
    """Where a walk down the tree ended, and the pages it passed."""

    node: Node
    pages: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Insertion:
    """The node at the end of the inserted key, and the pages that the tree does not use."""

    node: Node
    duplicates: list[int]


class RadixTree:
    """Owns the cached pages until it evicts them. Locked pages are never evicted."""

    def __init__(self, page_size: int) -> None:
        self.root = Node(key=TokenKey.of(()), pages=[], locks=0, used_at=0)
        self.num_evictable = 0  # pages of unlocked nodes
        self.listener: PageListener = NoPageEvents()
        self._page_size = page_size
        self._clock = 0
        self._queue: list[tuple[int, int, Node]] = []  # heap of (used_at, ticket, leaf)
        self._tickets = itertools.count()

    def match(self, key: TokenKey) -> PrefixMatch:
        """The longest cached part of `key`, in whole pages. The match always ends at a node."""
        return self._walk(self.root, key)

    def has_child(self, node: Node, key: TokenKey) -> bool:
        """Whether the first page of `key` is cached after `node`."""
        return key.head(self._page_size) in node.children

    def is_idle_tip(self, node: Node) -> bool:
        """Whether a cached text ends with this node, and no lease uses it."""
        return not node.children and not node.locks

    def partings(self, node: Node) -> set[int]:
        """The pages before this node after which several texts go on."""
        above = itertools.islice(self._path(node), 1, None)
        return {each.pages[-1] for each in above if len(each.children) > 1}

    def insert(self, node: Node, key: TokenKey, pages: list[int]) -> Insertion:
        """Caches `pages` after `node`; the caller's lock on `node` moves to where they end."""
        assert len(key) == len(pages) * self._page_size, "only whole pages can be shared"
        match = self._walk(node, key)
        known = len(match.pages)
        self.lock(match.node)
        self.unlock(node)
        end = match.node
        if known < len(pages):
            end = self._append(end, key[known * self._page_size :], pages[known:])
        return Insertion(node=end, duplicates=pages[:known])

    def lock(self, node: Node) -> None:
        for step in self._path(node):
            if step.locks == 0:
                self.num_evictable -= len(step.pages)
            step.locks += 1

    def unlock(self, node: Node) -> None:
        self._clock += 1
        for step in self._path(node):
            assert step.locks > 0, "unlocked more often than locked"
            step.locks -= 1
            step.used_at = self._clock
            if step.locks == 0:
                self.num_evictable += len(step.pages)
        self._enqueue(node)

    def evict(self, num_pages: int) -> list[int]:
        """Forgets this many pages, the longest unused first and every sequence from its end."""
        assert num_pages <= self.num_evictable, "the caller checks num_evictable"
        evicted: list[int] = []
        while len(evicted) < num_pages:
            evicted += self._trim(self._pop_oldest(), num_pages - len(evicted))
        return evicted

    def prune(self, node: Node, num_pages: int) -> list[int]:
        """Forgets this many pages before the end of `node`, or fewer.

        Pages that are in use or lead elsewhere stay, with those before them.
        """
        pruned: list[int] = []
        while len(pruned) < num_pages and self._can_evict(node):
            parent = node.parent
            pruned += self._trim(node, num_pages - len(pruned))
            node = parent
        return pruned

    def _walk(self, node: Node, key: TokenKey) -> PrefixMatch:
        rest = key.whole_pages(self._page_size)
        pages: list[int] = []
        while len(rest) and (head := rest.head(self._page_size)) in node.children:
            node = node.children[head]
            num_pages = rest.num_common(node.key) // self._page_size
            if num_pages < len(node.pages):
                node = self._split(node, num_pages)
            pages += node.pages
            rest = rest[num_pages * self._page_size :]
        return PrefixMatch(node=node, pages=pages)

    def _split(self, node: Node, num_pages: int) -> Node:
        """Cuts an edge in two and returns the upper part; `node` becomes the lower part."""
        cut = num_pages * self._page_size
        upper = Node(
            key=node.key[:cut],
            pages=node.pages[:num_pages],
            locks=node.locks,
            used_at=node.used_at,
        )
        self._attach(upper, node.parent)
        node.key = node.key[cut:]
        node.pages = node.pages[num_pages:]
        self._attach(node, upper)
        return upper

    def _append(self, node: Node, key: TokenKey, pages: list[int]) -> Node:
        """Adds new pages after `node` and returns their end, to which the caller's lock moves."""
        self.listener.note_stored(node.pages[-1] if node.pages else ROOT_PAGE, pages, key)
        if self._can_grow(node):  # or decoding would make a node per page
            node.key = node.key.followed_by(key)
            node.pages += pages
            return node
        child = Node(key=key, pages=pages, locks=1, used_at=self._clock)
        self._attach(child, node)
        return child

    def _can_grow(self, node: Node) -> bool:
        """Whether new pages may lengthen this edge: the caller alone holds it and it ends there."""
        is_tip = node is not self.root and node.locks == 1 and not node.children
        return is_tip and len(node.key) < LONG_EDGE

    def _attach(self, child: Node, parent: Node) -> None:
        child.parent = parent
        parent.children[child.key.head(self._page_size)] = child

    def _path(self, node: Node) -> Iterator[Node]:
        while node is not self.root:
            yield node
            node = node.parent

    def _trim(self, leaf: Node, num_pages: int) -> list[int]:
        """Takes up to `num_pages` from the end of a leaf; an empty leaf leaves the tree."""
        left = max(0, len(leaf.pages) - num_pages)
        trimmed = leaf.pages[left:]
        self.num_evictable -= len(trimmed)
        del leaf.pages[left:]
        self.listener.note_removed(trimmed)
        if left:
            leaf.key = leaf.key[: left * self._page_size]
            self._enqueue(leaf)
        else:
            del leaf.parent.children[leaf.key.head(self._page_size)]
            self._enqueue(leaf.parent)
        return trimmed

    def _enqueue(self, node: Node) -> None:
        if self._can_evict(node) and not node.is_queued:
            heapq.heappush(self._queue, (node.used_at, next(self._tickets), node))
            node.is_queued = True

    def _pop_oldest(self) -> Node:
        """The evictable leaf released longest ago. Outdated entries are dropped or renewed here.

        So a node has one entry at most, however often it is used between two evictions.
        """
        while True:
            used_at, _, node = heapq.heappop(self._queue)
            node.is_queued = False
            if used_at == node.used_at and self._can_evict(node):
                return node
            self._enqueue(node)

    def _can_evict(self, node: Node) -> bool:
        # A node that left the tree has no pages; it can still have an entry in the queue.
        return len(node.pages) > 0 and node.locks == 0 and not node.children
