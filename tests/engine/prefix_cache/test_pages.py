import pytest

from outrider.engine.prefix_cache.page_allocator import PageAllocator


def test_padding_page_is_never_handed_out() -> None:
    allocator = PageAllocator(4)
    assert allocator.num_free == 3
    assert sorted(allocator.allocate(3)) == [1, 2, 3]
    assert allocator.num_free == 0


def test_allocating_nothing_takes_nothing() -> None:
    allocator = PageAllocator(4)
    assert allocator.allocate(0) == ()
    assert allocator.num_free == 3


def test_freed_pages_are_handed_out_again() -> None:
    allocator = PageAllocator(4)
    pages = allocator.allocate(2)
    allocator.free(pages)
    assert allocator.num_free == 3
    assert sorted(allocator.allocate(3)) == [1, 2, 3]


@pytest.mark.parametrize("pages", [(2,), (1, 1), (0,), (4,)])
def test_freeing_a_page_that_is_not_taken_is_refused(pages: tuple[int, ...]) -> None:
    allocator = PageAllocator(4)
    assert allocator.allocate(1) == (1,)
    with pytest.raises(AssertionError, match="not taken or named twice"):
        allocator.free(pages)


def test_allocating_more_than_is_free_is_refused() -> None:
    with pytest.raises(AssertionError, match="num_free"):
        PageAllocator(4).allocate(4)
