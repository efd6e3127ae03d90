"""Leases on KV pages, with sharing between requests: what the scheduler sees of the cache."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.engine.prefix_cache.page_allocator import PageAllocator
from outrider.engine.prefix_cache.page_events import PageEvents
from outrider.engine.prefix_cache.radix_tree import Node, PrefixMatch, RadixTree
from outrider.engine.prefix_cache.snapshot_slots import AnySlots, LeaseSnapshots, NoSlots
from outrider.engine.prefix_cache.token_key import TokenKey
from outrider.engine.prefix_cache.window_pages import AnyWindows, LeaseWindow, NoWindows
from outrider.errors import CapacityError
from outrider.wire.engine_stats import Capacity


@dataclass(slots=True, kw_only=True, eq=False)
class Lease:
    """The pages of one running request. A page once listed stays in its place until close."""

    # pages [0, num_shared)  in the tree, locked; other requests may match them
    # pages [num_shared, ..) of this request alone
    pages: list[int]
    cached: int  # tokens the cache served at open
    num_shared: int
    node: Node  # where the shared pages end in the tree
    salt: bytes  # only requests of the same salt share pages
    snapshots: LeaseSnapshots = field(default_factory=LeaseSnapshots)
    window: LeaseWindow = field(default_factory=LeaseWindow)
    is_open: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """Sums since the start."""

    queried_tokens: int
    hit_tokens: int
    evicted_pages: int


class PrefixCache:
    """Decides for every page id whether it is free, cached in the tree, or lent to one lease.

    Draft KV at a position depends on `lookahead` tokens after it. So N known tokens identify the KV
    of N - lookahead positions only.

    A model with row state can continue only after a page that has a snapshot of that state. Pages
    after it are kept: they show where texts part, and the next request leaves a snapshot there.
    One whose layers have a sliding window can continue only where the whole window is there.
    """

    def __init__(
        self,
        *,
        num_pages: int,
        page_size: int,
        enabled: bool = True,
        lookahead: int = 0,
        slots: AnySlots | None = None,  # for snapshots; None if the model has no row state
        windows: AnyWindows | None = None,  # None: all layers have the same pages
    ) -> None:
        assert page_size > 0
        self.windows = windows or NoWindows()
        self.slots = slots or NoSlots()
        has_one = isinstance(self.slots, NoSlots) or isinstance(self.windows, NoWindows)
        assert has_one, "a model with row state has no window pages"
        self.page_size = page_size
        self._allocator = PageAllocator(num_pages)
        self._tree = RadixTree(page_size)
        self.is_enabled = enabled
        self._lookahead = lookahead  # tokens past a position that its KV depends on
        self._queried_tokens = 0
        self._hit_tokens = 0
        self._evicted_pages = 0

    @property
    def num_pages(self) -> int:
        """Pages that can be lent at all; page 0 is not one of them."""
        return self._allocator.num_usable

    @property
    def num_available(self) -> int:
        """Pages that can be lent now: free ones, and cached ones that no request uses."""
        return self._allocator.num_free + self._tree.num_evictable

    @property
    def capacity(self) -> Capacity:
        """Pages of the kind of which the smaller share is left."""
        pages = Capacity(free=self.num_available, total=self.num_pages)
        if isinstance(self.windows, NoWindows):
            return pages
        windows = Capacity(free=self.windows.num_available, total=self.windows.num_pages)
        return min(pages, windows, key=lambda each: each.free / each.total)

    @property
    def stats(self) -> CacheStats:
        return CacheStats(
            queried_tokens=self._queried_tokens,
            hit_tokens=self._hit_tokens,
            evicted_pages=self._evicted_pages,
        )

    def record_events(self) -> PageEvents:
        """Note from now on which pages are cached; nothing is cached yet."""
        assert self._allocator.num_free == self.num_pages, "nothing is cached yet"
        events = PageEvents(self.page_size)
        self._tree.listener = events
        return events

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def open(self, tokens: Sequence[int], *, salt: bytes = b"") -> Lease:
        """A lease that starts with the longest cached part of `tokens`, in whole pages."""
        match = found = self._match(tokens, salt, self.num_covered(tokens))
        # A text that only goes on from the end of another one replaces it; nothing parts there.
        parting = 0 if self._tree.is_idle_tip(found.node) else len(found.pages)
        num_resumable = self._num_resumable(found.pages)
        if num_resumable < len(found.pages):
            match = self._match(tokens, salt, num_resumable)
        self._tree.lock(match.node)
        num_shared = len(match.pages)
        cached = num_shared * self.page_size
        self._queried_tokens += len(tokens)
        self._hit_tokens += cached
        return Lease(
            pages=match.pages,
            cached=cached,
            num_shared=num_shared,
            node=match.node,
            salt=salt,
            snapshots=LeaseSnapshots(
                restored=self.slots.use(match.pages), matched=len(found.pages) * self.page_size
            ),
            window=self.windows.open(match.pages, parting=parting),
        )

    def count_cached(self, tokens: Sequence[int], *, salt: bytes = b"") -> int:
        """Tokens that `open` would find. Nothing is lent."""
        found = self._match(tokens, salt, self.num_covered(tokens))
        return self._num_resumable(found.pages) * self.page_size

    def _num_resumable(self, pages: list[int]) -> int:
        """Pages up to the last one after which a request can continue."""
        return min(self.slots.num_resumable(pages), self.windows.num_resumable(pages))

    def _match(self, tokens: Sequence[int], salt: bytes, num_pages: int) -> PrefixMatch:
        """The cached pages among the first `num_pages` of a text."""
        return self._tree.match(self._key(tokens, salt, first=0, last=num_pages))

    def has_room(self, lease: Lease, num_tokens: int, *, spare: int) -> bool:
        """Whether the lease can cover so many positions, and leave `spare` pages to others."""
        num_pages = self.pages_for(num_tokens)
        needed = num_pages - len(lease.pages) + spare
        if needed > self.num_available:
            return False
        return self.windows.has_room(lease.window, num_pages, spare=spare)

    def slide(self, lease: Lease, *, oldest: int, num_tokens: int) -> tuple[int, ...]:
        """Makes the window pages of the lease cover positions up to `num_tokens`.

        Returns the window pages that adds. Queries before position `oldest` do not run any more.
        """
        assert lease.is_open
        num_pages = self.pages_for(num_tokens)
        return self.windows.slide(lease.window, lease.pages, oldest=oldest, num_pages=num_pages)

    def extend(self, lease: Lease, num_tokens: int) -> tuple[int, ...]:
        """Makes the lease cover positions [0, num_tokens) and returns the pages that adds."""
        assert lease.is_open
        needed = self.pages_for(num_tokens) - len(lease.pages)
        if needed <= 0:  # the usual case: a page lasts for many steps
            return ()
        missing = needed - self._allocator.num_free
        if missing > 0:
            self._evict(missing)
        granted = self._allocator.allocate(needed)
        lease.pages += granted
        return granted

    def _evict(self, num_pages: int) -> None:
        """Frees this many cached pages that no request uses."""
        if num_pages > self._tree.num_evictable:
            needed = self._allocator.num_free + num_pages
            raise CapacityError(
                f"{needed} more KV pages are needed and {self.num_available} can be had: "
                "wait until a request ends, run fewer at once, or give the cache more memory"
            )
        self._free(self._tree.evict(num_pages))
        self._evicted_pages += num_pages

    def _free(self, pages: list[int]) -> None:
        """Pages are in no lease and not cached. Their snapshots and window pages end with them."""
        self.slots.drop(pages)
        self.windows.drop(pages)
        self._allocator.free(pages)

    def publish(self, lease: Lease, tokens: Sequence[int]) -> None:
        """Shares the full pages of `tokens`, whose KV the pages of the lease hold now.

        If another request has cached the same tokens meanwhile, the pages of this lease stay
        private until close. Sharing them would lock pages that this request does not use, and a
        request that runs alone could then not use the whole pool.
        """
        assert lease.is_open
        covered, first = self.num_covered(tokens), lease.num_shared
        if covered > first:
            next_page = self._key(tokens, lease.salt, first=first, last=first + 1)
            if not self._tree.has_child(lease.node, next_page):
                self._share(lease, tokens, covered)
        self._attach_snapshots(lease, tokens, covered)

    def close(self, lease: Lease, tokens: Sequence[int]) -> None:
        """Leaves the full pages of `tokens` in the cache and takes all others back.

        Fewer tokens than were published take nothing out of the cache again.
        """
        assert lease.is_open, "a lease is closed once"
        first, covered = lease.num_shared, max(lease.num_shared, self.num_covered(tokens))
        duplicates = self._share(lease, tokens, covered)
        self._attach_snapshots(lease, tokens, covered)
        self._end(lease)
        if duplicates:
            cached = self._match(tokens, lease.salt, covered).pages[first:]
            for page, heir in zip(duplicates, cached, strict=False):
                self.windows.hand_over(page, heir)
        self._tree.unlock(lease.node)
        self._free(duplicates + lease.pages[covered:])

    def discard(self, lease: Lease) -> None:
        """Takes all pages back, also those that the lease published and that no request uses now.

        They may hold NaN. Pages that the cache served at open stay: earlier requests wrote them.
        """
        assert lease.is_open, "a lease is closed once"
        self._end(lease)
        self._tree.unlock(lease.node)
        num_published = lease.num_shared - lease.cached // self.page_size
        self._free(self._tree.prune(lease.node, num_published))
        self._free(lease.pages[lease.num_shared :])

    def _end(self, lease: Lease) -> None:
        self.slots.give_back(lease.snapshots.take_all())
        self.windows.close(lease.window, lease.pages)
        lease.is_open = False

    def _attach_snapshots(self, lease: Lease, tokens: Sequence[int], covered: int) -> None:
        """Give the snapshots of the lease to the pages that end where they were taken.

        These may be pages of another request with the same text. A page that is not cached yet
        gets its snapshot later.
        """
        for border in sorted(lease.snapshots.taken):
            num_pages = border // self.page_size
            match = self._match(tokens, lease.salt, min(num_pages, covered))
            if len(match.pages) == num_pages:
                self.slots.attach(match.pages[-1], lease.snapshots.taken.pop(border))
                partings = self._tree.partings(match.node)
                self.slots.pass_by([page for page in match.pages[:-1] if page not in partings])

    def keep_private(self, lease: Lease) -> None:
        """Let go of the cached pages at its beginning, which can then be flushed."""
        assert lease.is_open
        assert isinstance(self.windows, NoWindows), "engines with a role have none"
        self._tree.unlock(lease.node)
        lease.node = self._tree.root
        self._tree.lock(lease.node)
        del lease.pages[: lease.num_shared]
        lease.num_shared = lease.cached = 0

    def forget(self, tokens: Sequence[int], *, salt: bytes, num_first: int) -> None:
        """Frees the pages after the first `num_first` tokens of a text that no request uses."""
        match = self._match(tokens, salt, self.num_covered(tokens))
        num_pages = len(match.pages) - num_first // self.page_size
        self._free(self._tree.prune(match.node, num_pages))

    def flush(self) -> None:
        """Forgets every cached page that no request uses."""
        self._free(self._tree.evict(self._tree.num_evictable))

    def _share(self, lease: Lease, tokens: Sequence[int], covered: int) -> list[int]:
        """Moves the lease's pages up to `covered` into the tree; returns those the tree has."""
        assert covered <= len(lease.pages), "committed tokens have their pages"
        key = self._key(tokens, lease.salt, first=lease.num_shared, last=covered)
        pages = lease.pages[lease.num_shared : covered]
        insertion = self._tree.insert(lease.node, key, pages)
        lease.node = insertion.node
        lease.num_shared = covered
        return insertion.duplicates

    def num_covered(self, tokens: Sequence[int]) -> int:
        """How many full pages can be found again by these tokens."""
        return self.last_border(len(tokens)) // self.page_size

    def last_border(self, num_tokens: int) -> int:
        """Positions in the full pages that can be found again by so many tokens."""
        if not self.is_enabled:
            return 0
        return max(0, num_tokens - self._lookahead) // self.page_size * self.page_size

    def _key(self, tokens: Sequence[int], salt: bytes, *, first: int, last: int) -> TokenKey:
        """The key of pages [first, last). Only the first page of a text has the salt."""
        start, stop = first * self.page_size, last * self.page_size
        known, salt = tokens[start : stop + self._lookahead], b"" if first else salt
        return TokenKey.of(known, salt=salt).looking_ahead(self._lookahead)
