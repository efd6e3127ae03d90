"""Which cached page has a snapshot of row state, and in which slot. The copies are on the device.

Slots are numbers in the order of steps: a step reads its slots before it runs and writes them
after. So a slot can be taken again in the step that reads it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from outrider.engine.prefix_cache.eviction_order import EvictionOrder


@dataclass(slots=True, kw_only=True)
class LeaseSnapshots:
    """The snapshots of one running request."""

    restored: int = 0  # slot of the state that its row begins with; 0 for none
    matched: int = 0  # tokens in cached pages, also after the last one that has a snapshot
    taken: dict[int, int] = field(default_factory=dict)  # slots by border, not attached yet
    in_flight: list[int] = field(default_factory=list)  # slots of rounds that were not read yet

    def take_all(self) -> list[int]:
        """The slots that no page has; the lease does not hold them any more."""
        slots = [*self.taken.values(), *self.in_flight]
        self.taken, self.in_flight = {}, []
        return slots


class NoSlots:
    """For models without row state, which continue after any page."""

    num = 0

    def num_resumable(self, pages: Sequence[int]) -> int:
        return len(pages)

    def use(self, pages: Sequence[int]) -> int:
        del pages
        return 0

    def attach(self, page: int, slot: int) -> None:
        raise AssertionError(f"page {page} has slot {slot}, and there are none")

    def pass_by(self, pages: Sequence[int]) -> None:
        pass

    def drop(self, pages: Sequence[int]) -> None:
        pass

    def give_back(self, slots: Iterable[int]) -> None:
        pass


class SnapshotSlots:
    """Owns the slots 1 .. num: each is free, held by a lease, or attached to a cached page."""

    def __init__(self, num: int) -> None:
        self.num = num
        self._free = list(range(num, 0, -1))
        self._of_page: dict[int, int] = {}  # slots by page
        self._order = EvictionOrder()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_held(self) -> int:
        """Slots of running requests."""
        return self.num - len(self._free) - len(self._of_page)

    def take(self) -> int:
        """A free slot, or that of the page which loses its snapshot next; 0 if none is."""
        if self._free:
            return self._free.pop()
        return self._of_page.pop(self._order.pop()) if self._of_page else 0

    def give_back(self, slots: Iterable[int]) -> None:
        self._free += slots
        assert self.num_held >= 0, "a slot is given back once"

    def attach(self, page: int, slot: int) -> None:
        """A cached page gets a snapshot, unless it has one of the same text."""
        if page in self._of_page:
            self.give_back((slot,))
        else:
            self._of_page[page] = slot
        self._order.renew(page, is_end=True)

    def pass_by(self, pages: Iterable[int]) -> None:
        """Texts go on after these pages to a later snapshot, and do not part there."""
        for page in pages:
            if page in self._of_page:
                self._order.renew(page, is_end=False)

    def drop(self, pages: Iterable[int]) -> None:
        """Pages are not cached any more."""
        for page in pages:
            if page in self._of_page:
                self._order.discard(page)
                self.give_back((self._of_page.pop(page),))

    def num_resumable(self, pages: Sequence[int]) -> int:
        """Pages up to the last one after which a request can continue."""
        places = range(len(pages), 0, -1)
        return next((place for place in places if pages[place - 1] in self._of_page), 0)

    def use(self, pages: Sequence[int]) -> int:
        """The slot of the last page; 0 if there is no page."""
        if not pages:
            return 0
        self._order.renew(pages[-1], is_end=True)
        return self._of_page[pages[-1]]


AnySlots = SnapshotSlots | NoSlots
