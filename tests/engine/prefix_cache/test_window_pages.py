"""Window pages: lent while a query can see them, found again until they are taken."""

import pytest

from outrider.engine.prefix_cache.prefix_cache import Lease, PrefixCache
from outrider.engine.prefix_cache.window_pages import WindowPages
from outrider.errors import CapacityError
from outrider.wire.window_facts import Window

PAGE, WINDOW = 4, 8


def cache_of(num_window_pages: int, *, most_held: int = 4, is_chunk: bool = False) -> PrefixCache:
    windows = WindowPages(
        num_pages=num_window_pages,
        page_size=PAGE,
        window=Window(tokens=WINDOW, is_chunk=is_chunk),
        most_held=most_held,
    )
    return PrefixCache(num_pages=101, page_size=PAGE, windows=windows)


def run(cache: PrefixCache, tokens: list[int], *, chunk: int = PAGE) -> Lease:
    """A request that computes all of its tokens, chunk by chunk."""
    lease = cache.open(tokens)
    cache.extend(lease, len(tokens))
    for start in range(lease.cached, len(tokens), chunk):
        stop = min(start + chunk, len(tokens))
        cache.slide(lease, oldest=start, num_tokens=stop)
    return lease


def test_a_long_text_holds_no_more_than_its_window_and_one_chunk() -> None:
    cache = cache_of(4)
    lease = run(cache, list(range(80)))
    assert len(lease.pages) == 20
    # The last chunk is [76, 80). Its first query sees from 69 on, which is on page 17 of [0, 20).
    assert (lease.window.first, lease.window.stop) == (17, 20)
    assert cache.windows.num_available == 1


def test_a_text_continues_where_its_last_window_is_whole() -> None:
    cache = cache_of(6)
    text = list(range(40))
    cache.close(run(cache, text), text)
    assert cache.count_cached([*text, 99]) == 40
    cache.close(run(cache, list(range(500, 512))), ())  # takes what the text left behind
    assert cache.count_cached([*text, 99]) == 40
    cache.close(run(cache, list(range(600, 632)), chunk=16), ())  # needs all
    assert cache.count_cached([*text, 99]) == 0


def test_the_third_text_with_the_same_beginning_continues_after_it() -> None:
    cache = cache_of(9)
    common, cached = list(range(16)), []
    for last in (100, 200, 300):
        text = [*common, *range(last, last + 40)]
        lease = run(cache, text)
        cached.append(lease.cached)
        cache.close(lease, text)
    assert cached == [0, 0, 16]  # the second one has computed the window before it again


def test_the_end_that_a_text_has_passed_goes_before_the_ends_of_others() -> None:
    cache = cache_of(6)  # the last step has 3 pages, an end has 2
    text, other = list(range(16)), list(range(100, 116))
    cache.close(run(cache, text), text)
    cache.close(run(cache, other), other)
    longer = [*text, *range(50, 66)]  # the next turn of a chat
    cache.close(run(cache, longer), longer)
    assert cache.count_cached([*other, 99]) == 16
    assert cache.count_cached([*longer, 99]) == 32


def test_the_beginning_of_a_text_is_found_while_its_window_pages_are_idle() -> None:
    cache = cache_of(20)
    text = list(range(40))
    cache.close(run(cache, text), text)
    other = [*text[:22], 99]
    assert cache.count_cached(other) == 20  # whole pages


def test_a_text_that_was_computed_again_gives_its_window_to_the_cached_pages() -> None:
    cache = cache_of(6)
    text = list(range(24))
    cache.close(run(cache, text), text)
    cache.close(run(cache, list(range(500, 532)), chunk=16), ())  # needs all
    assert cache.count_cached([*text, 99]) == 0
    cache.close(run(cache, text), text)
    assert cache.count_cached([*text, 99]) == 24


def test_pages_in_a_window_are_not_taken_and_the_error_changes_nothing() -> None:
    cache = cache_of(4)
    first = run(cache, list(range(12)))
    second = cache.open(list(range(100, 120)))
    cache.extend(second, 20)
    with pytest.raises(CapacityError, match="window pages"):
        cache.slide(second, oldest=0, num_tokens=8)
    assert cache.windows.ids(second.window, second.pages) == ()
    cache.close(first, ())
    assert len(cache.slide(second, oldest=0, num_tokens=8)) == 2


def test_two_requests_share_the_window_of_a_common_prefix() -> None:
    cache = cache_of(8)
    text = list(range(16))
    cache.close(run(cache, text), text)
    leases = [cache.open([*text, last]) for last in (97, 98)]
    ids = {cache.windows.ids(lease.window, lease.pages) for lease in leases}
    assert len(ids) == 1
    for lease in leases:
        cache.extend(lease, 20)
        cache.slide(lease, oldest=16, num_tokens=20)
    cache.slide(leases[0], oldest=19, num_tokens=20)  # its window begins at 12, on page 3
    assert leases[0].window.first == 3
    assert cache.windows.ids(leases[1].window, leases[1].pages)[0] == next(iter(ids))[0]
    for lease in leases:
        cache.close(lease, ())
    assert cache.windows.num_available == 8


def test_what_is_left_is_told_of_the_kind_that_is_scarcer() -> None:
    cache = cache_of(4)
    assert (cache.capacity.free, cache.capacity.total) == (100, 100)
    run(cache, list(range(80)))
    assert (cache.capacity.free, cache.capacity.total) == (1, 4)  # and 80 of 100 pages


def test_a_request_is_admitted_when_its_window_fits_and_not_its_text() -> None:
    cache = cache_of(5)
    lease = cache.open(list(range(200)))
    assert cache.has_room(lease, 200, spare=1)
    assert not cache.has_room(lease, 200, spare=2)


def test_a_text_lets_go_of_a_whole_attention_chunk_when_it_begins_the_next() -> None:
    cache = cache_of(4, is_chunk=True)
    lease = cache.open(list(range(40)))
    cache.extend(lease, 40)
    held = []
    for start in range(0, 40, PAGE):
        cache.slide(lease, oldest=start, num_tokens=start + PAGE)
        held.append(lease.window.stop - lease.window.first)
    assert held == [1, 2, 1, 2, 1, 2, 1, 2, 1, 2]  # a chunk of 8 tokens has two pages


def test_a_text_continues_at_the_beginning_of_a_chunk_without_any_window_page() -> None:
    cache = cache_of(2, is_chunk=True)
    texts = [list(range(first, first + 28)) for first in (0, 100)]  # three chunks and a half
    for text in texts:
        cache.close(run(cache, text), text)
    assert cache.count_cached([*texts[1], 99]) == 28
    assert cache.count_cached([*texts[0], 99]) == 24  # the last page is of the other text now
