"""The free list of KV pages. It knows numbers, not what the pages hold."""

from collections.abc import Iterable


class PageAllocator:
    """Owns the ids 1 .. num_pages-1. Page 0 is padding and is never allocated."""

    def __init__(self, num_pages: int) -> None:
        assert num_pages >= 1, "page 0 always exists"
        self.num_usable = num_pages - 1
        self._free = list(
            range(num_pages - 1, 0, -1)
        )  # a stack: pages freed last are allocated first
        self._taken: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, num_pages: int) -> tuple[int, ...]:
        assert 0 <= num_pages <= self.num_free, "the caller checks num_free"
        left = self.num_free - num_pages
        pages = tuple(reversed(self._free[left:]))
        del self._free[left:]
        self._taken.update(pages)
        return pages

    def free(self, pages: Iterable[int]) -> None:
        returned = tuple(pages)
        left = len(self._taken) - len(returned)
        self._taken.difference_update(returned)
        assert len(self._taken) == left, f"some of pages {returned} are not taken or named twice"
        self._free.extend(returned)
