import sys

import pytest

from outrider.engine.prefix_cache.prefix_cache import CacheStats, Lease, PrefixCache
from outrider.errors import CapacityError

PROMPT = list(range(100, 112))  # 3 pages of 4


@pytest.fixture
def cache() -> PrefixCache:
    return PrefixCache(num_pages=9, page_size=4)


def run(cache: PrefixCache, tokens: list[int]) -> Lease:
    """A request whose tokens are all in KV."""
    lease = cache.open(tokens)
    cache.extend(lease, len(tokens))
    return lease


def finish(cache: PrefixCache, tokens: list[int]) -> None:
    cache.close(run(cache, tokens), tokens)


def test_usable_pages_leave_out_the_padding_page(cache: PrefixCache) -> None:
    assert cache.num_pages == cache.num_available == 8
    assert [cache.pages_for(n) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_finished_request_serves_its_full_pages_to_the_next(cache: PrefixCache) -> None:
    first = run(cache, PROMPT[:10])
    cache.close(first, PROMPT[:10])
    again = cache.open(PROMPT)
    assert again.cached == 8  # 10 tokens fill two pages of 4
    assert again.pages == first.pages[:2]


@pytest.mark.parametrize("lookahead", [0, 1])
def test_requests_of_another_salt_share_nothing(lookahead: int) -> None:
    cache = PrefixCache(num_pages=30, page_size=4, lookahead=lookahead)
    for salt in (b"", b"a", b"b"):
        lease = cache.open(PROMPT, salt=salt)
        assert lease.cached == 0
        cache.extend(lease, len(PROMPT))
        cache.publish(lease, PROMPT[:5])
        cache.close(lease, PROMPT)
    longer = [*PROMPT, *range(8)]
    for salt in (b"a", b"", b"b"):
        lease = cache.open(longer, salt=salt)
        assert lease.cached == 12 - 4 * lookahead
        cache.extend(lease, len(longer))
        cache.close(lease, longer)  # grows the edge, or splits it
        assert cache.open([*PROMPT[:5], 7, 7, 7], salt=salt).cached == 4
    assert cache.open(PROMPT, salt=b"c").cached == 0


def test_cached_pages_that_no_row_uses_stay_available(cache: PrefixCache) -> None:
    finish(cache, PROMPT)
    assert cache.num_available == 8
    lease = cache.open(PROMPT)
    assert cache.num_available == 5
    cache.close(lease, [])
    assert cache.num_available == 8


def test_extend_grants_only_pages_the_lease_lacks(cache: PrefixCache) -> None:
    lease = cache.open(PROMPT)
    assert len(cache.extend(lease, 5)) == 2
    assert cache.extend(lease, 8) == ()
    assert cache.extend(lease, 3) == ()
    granted = cache.extend(lease, 9)
    assert lease.pages[2:] == list(granted)
    assert 0 not in lease.pages


def test_extend_beyond_capacity_is_refused_and_changes_nothing(cache: PrefixCache) -> None:
    finish(cache, PROMPT)
    lease = run(cache, [1] * 8)
    before = list(lease.pages)
    with pytest.raises(CapacityError, match="7 more KV pages are needed and 6 can be had") as error:
        cache.extend(lease, 36)
    assert "\n" not in str(error.value)
    assert lease.pages == before
    assert cache.num_available == 6
    assert cache.open(PROMPT).cached == 12


def test_extend_evicts_what_was_released_longest_ago(cache: PrefixCache) -> None:
    finish(cache, [1] * 12)
    finish(cache, [2] * 12)
    cache.extend(cache.open([]), 4 * 4)  # 2 pages are free
    assert cache.open([1] * 12).cached == 4
    assert cache.open([2] * 12).cached == 12
    assert cache.stats.evicted_pages == 2


def test_running_request_shares_what_it_published(cache: PrefixCache) -> None:
    first = run(cache, PROMPT)
    cache.publish(first, PROMPT[:9])
    second = cache.open(PROMPT)
    assert second.pages == first.pages[:2]
    cache.close(first, PROMPT)
    cache.close(second, PROMPT[:8])
    assert cache.num_available == 8


def test_published_pages_outlive_their_publisher_while_another_uses_them(
    cache: PrefixCache,
) -> None:
    first = run(cache, PROMPT)
    cache.publish(first, PROMPT)
    second = cache.open(PROMPT)
    cache.close(first, [])
    assert cache.num_available == 5
    with pytest.raises(CapacityError):
        cache.extend(cache.open([]), 6 * 4)
    assert cache.open(PROMPT).pages == second.pages


def test_duplicate_pages_stay_in_place_and_are_freed_at_close(cache: PrefixCache) -> None:
    first, second = run(cache, PROMPT), run(cache, PROMPT)
    own = list(second.pages)
    cache.publish(first, PROMPT)
    cache.publish(second, PROMPT)
    assert second.pages == own
    assert set(own).isdisjoint(first.pages)
    cache.close(second, PROMPT)
    assert cache.num_available == 5  # first still runs
    assert cache.open(PROMPT).pages == first.pages


def test_request_with_duplicates_can_have_the_whole_pool_when_alone(cache: PrefixCache) -> None:
    first, second = run(cache, PROMPT), run(cache, PROMPT)
    cache.publish(first, PROMPT)
    cache.close(first, PROMPT)
    longer = [*PROMPT, 1, 2, 3, 4]
    cache.extend(second, 16)
    cache.publish(second, longer)
    cache.extend(second, 8 * 4)
    assert sorted(second.pages) == list(range(1, 9))


def test_pages_behind_duplicates_are_cached_at_close(cache: PrefixCache) -> None:
    first, second = run(cache, PROMPT), run(cache, PROMPT)
    cache.publish(first, PROMPT)
    longer = [*PROMPT, 1, 2, 3, 4]
    cache.extend(second, 16)
    cache.publish(second, longer)
    assert cache.open(longer).cached == 12
    cache.close(second, longer)
    assert cache.open(longer).pages == [*first.pages, second.pages[3]]


def test_rejected_drafts_return_their_pages(cache: PrefixCache) -> None:
    lease = cache.open(PROMPT)
    cache.extend(lease, 30)
    cache.close(lease, PROMPT[:5])
    assert cache.num_available == 8
    assert cache.open(PROMPT).cached == 4


def test_request_closed_without_tokens_caches_nothing(cache: PrefixCache) -> None:
    cache.close(run(cache, PROMPT), [])
    assert cache.open(PROMPT).cached == 0
    assert cache.num_available == 8


def test_flush_forgets_all_but_what_is_in_use(cache: PrefixCache) -> None:
    finish(cache, PROMPT)
    finish(cache, [7] * 8)
    lease = cache.open(PROMPT[:4])
    cache.flush()
    assert cache.open(PROMPT).pages == lease.pages
    assert cache.open([7] * 8).cached == 0


def test_closing_twice_is_refused(cache: PrefixCache) -> None:
    lease = run(cache, PROMPT)
    cache.close(lease, PROMPT)
    with pytest.raises(AssertionError, match="once"):
        cache.close(lease, PROMPT)


def test_publishing_tokens_without_pages_is_refused(cache: PrefixCache) -> None:
    lease = cache.open(PROMPT)
    with pytest.raises(AssertionError, match="have their pages"):
        cache.publish(lease, PROMPT)


def test_statistics_count_queries_hits_and_evictions(cache: PrefixCache) -> None:
    finish(cache, PROMPT)
    cache.close(cache.open(PROMPT[:11]), [])
    cache.flush()  # on demand, so not an eviction
    assert cache.stats == CacheStats(queried_tokens=23, hit_tokens=8, evicted_pages=0)


def test_disabled_cache_shares_nothing() -> None:
    cache = PrefixCache(num_pages=9, page_size=4, enabled=False)
    lease = run(cache, PROMPT)
    cache.publish(lease, PROMPT)
    assert cache.open(PROMPT).cached == 0
    cache.close(lease, PROMPT)
    assert cache.open(PROMPT).cached == 0
    assert cache.num_available == 8


def test_pairs_cover_one_position_fewer_than_tokens() -> None:
    cache = PrefixCache(num_pages=9, page_size=4, lookahead=1)
    finish(cache, PROMPT[:8])
    assert cache.open(PROMPT).cached == 4  # draft KV of position 7 depends on token 8
    finish(cache, PROMPT[:9])
    assert cache.open(PROMPT).cached == 8
    assert cache.open(PROMPT[:8]).cached == 4


def test_pairs_do_not_match_a_page_whose_next_token_differs() -> None:
    cache = PrefixCache(num_pages=9, page_size=4, lookahead=1)
    finish(cache, PROMPT)
    assert cache.open([*PROMPT[:8], 1, 2, 3, 4]).cached == 4
    assert cache.open([*PROMPT[:9], 2, 3, 4]).cached == 8


def test_opening_a_long_cached_prompt_is_no_loop_over_tokens() -> None:
    cache = PrefixCache(num_pages=100_001, page_size=1)
    prompt = list(range(100_000))
    finish(cache, prompt)
    lines = 0

    def count(_frame: object, event: str, _arg: object) -> object:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        lease = cache.open(prompt)
    finally:
        sys.settrace(before)
    assert lease.cached == 100_000
    assert lines < 300


def test_pages_of_finished_requests_outlive_a_failed_one(cache: PrefixCache) -> None:
    finish(cache, PROMPT[:8])
    failed = run(cache, PROMPT)
    cache.publish(failed, PROMPT)
    cache.discard(failed)
    assert cache.num_available == cache.num_pages
    assert cache.open(PROMPT).cached == 8  # 12 were published
