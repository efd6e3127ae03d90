"""The slot of a position of a row, in compiled functions."""

from outrider.ops.compiled.address import int64_at
from outrider.ops.compiled.kernel_cache import compiled

# Rows, pages and stride of a page table, its address, and the size of a page.
Pages = tuple[int, int, int, int, int]


@compiled()
def page_slot(pages: Pages, row: int, position: int) -> int:
    """-1 if the table has no such place."""
    rows, width, stride, address, size = pages
    page = position // size
    if row < 0 or row >= rows or page < 0 or page >= width:
        return -1
    slot: int = int64_at(address)[row * stride + page] * size + position % size
    return slot
