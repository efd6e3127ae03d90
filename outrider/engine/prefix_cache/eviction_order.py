"""In which order cached pages lose what they have besides their KV."""

from collections import OrderedDict


class EvictionOrder:
    """Owns the order in which cached pages lose a window page, or a snapshot of row state.

    Pages in the middle of texts go first: few texts continue there. Pages at an end, and at a
    place where texts have parted, go when no others are left. Both go by age.
    """

    def __init__(self) -> None:
        self._passed: OrderedDict[int, None] = OrderedDict()  # the latest last
        self._ends: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._passed) + len(self._ends)

    def add(self, page: int, *, is_end: bool) -> None:
        (self._ends if is_end else self._passed)[page] = None

    def renew(self, page: int, *, is_end: bool) -> None:
        """A page is the latest of its kind."""
        self.discard(page)
        self.add(page, is_end=is_end)

    def discard(self, page: int) -> None:
        self._passed.pop(page, None)
        self._ends.pop(page, None)

    def replace(self, page: int, other: int) -> None:
        """Another page takes the place of one that is idle."""
        is_end = page in self._ends
        assert is_end or page in self._passed
        self.discard(page)
        self.add(other, is_end=is_end)

    def pop(self) -> int:
        """The page that goes next."""
        return (self._passed or self._ends).popitem(last=False)[0]
