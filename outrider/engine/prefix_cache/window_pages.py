"""Which pages of texts have a window page: the KV of the layers that do not see whole texts.

These layers, with a sliding window or attention chunks, and layers that see whole texts have pools
of their own. The prefix cache gives every page of a text an id for the latter; a window page is
lent to that id while a query can still see its tokens, and stays with it until another text needs
the memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.engine.prefix_cache.eviction_order import EvictionOrder
from outrider.engine.prefix_cache.page_allocator import PageAllocator
from outrider.errors import CapacityError
from outrider.wire.runner_facts import RunnerFacts
from outrider.wire.window_facts import Window


@dataclass(slots=True, kw_only=True)
class LeaseWindow:
    """Pages [first, stop) of a lease have window pages that its steps may read or write."""

    first: int = 0
    stop: int = 0
    parting: int = 0  # pages up to where it parts from another text; 0: it parts from none


class NoWindows:
    """For models whose layers all see the whole text."""

    def num_resumable(self, pages: Sequence[int]) -> int:
        return len(pages)

    def open(self, pages: Sequence[int], *, parting: int) -> LeaseWindow:
        del pages, parting
        return LeaseWindow()

    def has_room(self, window: LeaseWindow, num_pages: int, *, spare: int) -> bool:
        del window, num_pages, spare
        return True

    def slide(
        self, window: LeaseWindow, pages: Sequence[int], *, oldest: int, num_pages: int
    ) -> tuple[int, ...]:
        del window, pages, oldest, num_pages
        return ()

    def ids(self, window: LeaseWindow, pages: Sequence[int]) -> tuple[int, ...]:
        del window, pages
        return ()

    def close(self, window: LeaseWindow, pages: Sequence[int]) -> None:
        pass

    def hand_over(self, page: int, heir: int) -> None:
        pass

    def drop(self, pages: Sequence[int]) -> None:
        pass


class WindowPages:
    """Owns the window pages: each is free, in the window of some lease, or idle.

    Idle ones can be taken. Until then a text can be continued after them.
    """

    def __init__(
        self,
        *,
        num_pages: int,  # usable window pages; window page 0 is padding
        page_size: int,
        window: Window,
        most_held: int,  # pages that one lease has in its window, at most
    ) -> None:
        self._allocator = PageAllocator(num_pages + 1)
        self._page_size = page_size
        self._window = window
        self._most_held = most_held
        self._of_page: dict[int, int] = {}  # window pages by page
        self._users: dict[int, int] = {}  # leases that have a page in their window; none is absent
        self._idle = EvictionOrder()  # in no window

    @property
    def num_pages(self) -> int:
        return self._allocator.num_usable

    @property
    def num_available(self) -> int:
        """Window pages that are free or idle."""
        return self._allocator.num_free + len(self._idle)

    def num_resumable(self, pages: Sequence[int]) -> int:
        """Pages up to the last one after which a query finds the whole window."""
        place, lost = len(pages), len(pages)
        while lost >= 0:  # every window that ends behind the lost page has it
            place = lost
            seen = range(place - 1, self._first_seen(place * self._page_size) - 1, -1)
            lost = next((each for each in seen if pages[each] not in self._of_page), -1)
        return place

    def open(self, pages: Sequence[int], *, parting: int) -> LeaseWindow:
        """The window of a request that continues after these cached pages.

        It parts from a cached text after `parting` pages. Another text may part there, too.
        """
        first = self._first_seen(len(pages) * self._page_size)
        for page in pages[first:]:
            self._users[page] = self._users.get(page, 0) + 1
            self._idle.discard(page)
        return LeaseWindow(first=first, stop=len(pages), parting=parting)

    def has_room(self, window: LeaseWindow, num_pages: int, *, spare: int) -> bool:
        """Whether a text of so many pages can run to its end, and leave `spare` window pages."""
        missing = min(num_pages, self._most_held) - (window.stop - window.first)
        return missing + spare <= self.num_available

    def slide(
        self, window: LeaseWindow, pages: Sequence[int], *, oldest: int, num_pages: int
    ) -> tuple[int, ...]:
        """Move the window to the queries from position `oldest` on; returns the added window pages.

        They are of the pages up to `num_pages`. What is left behind is idle: steps run in order,
        so later ones may overwrite it.
        """
        first = min(max(window.first, self._first_seen(oldest)), window.stop)
        kept = range(self._first_seen(window.parting * self._page_size), window.parting)
        for place in range(window.first, first):
            self._let_go(pages[place], is_end=place in kept)
        window.first = first
        needed = max(num_pages - window.stop, 0)
        if needed > self.num_available:
            raise CapacityError(
                f"{needed} more window pages are needed and {self.num_available} can be had: "
                "wait until a request ends, run fewer at once, or give the cache more memory"
            )
        self._take_idle(needed - self._allocator.num_free)
        granted = self._allocator.allocate(needed)
        new = pages[window.stop : window.stop + needed]
        self._of_page.update(zip(new, granted, strict=True))
        self._users.update(dict.fromkeys(new, 1))
        window.stop += needed
        return granted

    def ids(self, window: LeaseWindow, pages: Sequence[int]) -> tuple[int, ...]:
        """The window pages in the window."""
        return tuple([self._of_page[page] for page in pages[window.first : window.stop]])

    def close(self, window: LeaseWindow, pages: Sequence[int]) -> None:
        """The lease reads and writes no more."""
        for page in pages[window.first : window.stop]:
            self._let_go(page, is_end=True)
        window.first = window.stop

    def hand_over(self, page: int, heir: int) -> None:
        """A page gives its window page to one of the same text, unless that has one."""
        if page in self._of_page and heir not in self._of_page:
            self._idle.replace(page, heir)
            self._of_page[heir] = self._of_page.pop(page)

    def drop(self, pages: Sequence[int]) -> None:
        """Pages are free now: nothing will read their window pages."""
        for page in pages:
            if page in self._of_page:
                assert page not in self._users, "a page in a window is not freed"
                self._idle.discard(page)
                self._allocator.free((self._of_page.pop(page),))

    def _first_seen(self, position: int) -> int:
        """The first page that a query at this position sees."""
        return self._window.first_seen(position) // self._page_size

    def _let_go(self, page: int, *, is_end: bool) -> None:
        self._users[page] -= 1
        if not self._users[page]:
            del self._users[page]
            self._idle.add(page, is_end=is_end)

    def _take_idle(self, num_pages: int) -> None:
        for _ in range(num_pages):
            self._allocator.free((self._of_page.pop(self._idle.pop()),))


AnyWindows = WindowPages | NoWindows


def open_windows(facts: RunnerFacts) -> AnyWindows:
    """The window pages that a runner has."""
    own = facts.memory.windows
    if not own.window.tokens:
        return NoWindows()
    return WindowPages(
        num_pages=own.num_pages,
        page_size=facts.host.page_size,
        window=own.window,
        most_held=facts.most_window_pages,
    )
