"""How the memory for KV is divided between pages and window pages."""

from dataclasses import replace

import pytest

from outrider.errors import ConfigError
from outrider.runtime.divide_pages import PageCounts, PageSizes, divide_pages

# Gemma-3-27B in bfloat16: 10 layers see the whole text and 52 a window of 1024, in pages of 16.
LAYER_BYTES = 16 * 2 * 16 * 128 * 2
SIZES = PageSizes(
    page_size=16,
    page_bytes=10 * LAYER_BYTES,
    window_page_bytes=52 * LAYER_BYTES,
    most_pages=32 * 8192,
    most_in_windows=32 * 66 + 512,
    most_in_one=66 + 512,
)
FREE = 70 * 10**9


def divide(sizes=SIZES, free=FREE, num_pages="auto", num_window_pages="auto") -> PageCounts:
    return divide_pages(
        sizes, num_pages=num_pages, num_window_pages=num_window_pages, free_bytes=free
    )


def bytes_of(counts: PageCounts, sizes=SIZES) -> int:
    return counts.num_pages * sizes.page_bytes + counts.num_window_pages * sizes.window_page_bytes


def test_few_rows_have_all_their_windows_and_the_other_layers_get_the_rest():
    counts = divide()
    without = FREE // (SIZES.page_bytes + SIZES.window_page_bytes)
    assert counts.num_pages > 3 * without
    ends = counts.num_window_pages - SIZES.most_in_windows  # of cached texts: half as many bytes
    assert ends * 52 == pytest.approx(counts.num_pages * 10 / 2, rel=0.001)
    assert FREE - SIZES.page_bytes < bytes_of(counts) <= FREE


def test_a_small_window_has_one_end_for_every_cached_text_of_four_windows():
    # gpt-oss-120b: 18 layers of each kind, a window of 128.
    sizes = replace(SIZES, page_bytes=10**6, window_page_bytes=10**6, most_in_windows=32 * 10 + 512)
    counts = divide(sizes)
    assert counts.num_window_pages - 832 == pytest.approx(counts.num_pages / 4, abs=1)


def test_many_rows_leave_four_fifths_of_the_room_of_short_texts():
    counts = divide(replace(SIZES, most_in_windows=256 * 66 + 512))
    without = FREE // (SIZES.page_bytes + SIZES.window_page_bytes)
    assert counts.num_window_pages == int(0.8 * without)
    assert counts.num_pages > 2 * without


def test_what_pages_cannot_use_is_for_the_windows_of_cached_prefixes():
    counts = divide(replace(SIZES, most_pages=20_000))
    assert counts.num_pages == 20_000
    assert counts.num_window_pages > 2624 + 20_000 * 0.5 * 10 / 52  # more than their usual share
    assert FREE - SIZES.window_page_bytes < bytes_of(counts) <= FREE


def test_a_model_of_windowed_layers_alone_can_have_every_text():
    sizes = replace(SIZES, page_bytes=0)
    fitting = FREE // sizes.window_page_bytes  # more than rows need: for cached prefixes
    assert divide(sizes) == PageCounts(num_pages=sizes.most_pages, num_window_pages=fitting)
    little = 600 * sizes.window_page_bytes
    assert divide(sizes, little) == PageCounts(num_pages=sizes.most_pages, num_window_pages=600)


@pytest.mark.parametrize("page_bytes", [0, SIZES.page_bytes])
def test_with_little_memory_every_page_has_a_window_page(page_bytes):
    sizes = replace(SIZES, page_bytes=page_bytes)
    counts = divide(sizes, 300 * (sizes.page_bytes + sizes.window_page_bytes))
    assert counts == PageCounts(num_pages=300, num_window_pages=300)


def test_requested_sizes_are_kept_or_refused_with_the_fix():
    assert divide(num_pages=9000, num_window_pages=3000) == PageCounts(
        num_pages=9000, num_window_pages=3000
    )
    assert divide(num_pages=100) == PageCounts(num_pages=100, num_window_pages=100)
    ends = int(9000 * 0.5 * 10 / 52)
    assert divide(num_pages=9000).num_window_pages == 2624 + ends
    little = 9000 * SIZES.page_bytes + 2700 * SIZES.window_page_bytes
    assert divide(num_pages=9000, free=little).num_window_pages == 2700  # fewer ends
    assert divide(num_window_pages=3000).num_window_pages == 3000
    with pytest.raises(ConfigError, match="raise window_tokens"):
        divide(num_window_pages=100)
    with pytest.raises(ConfigError, match="lower kv_tokens"):
        divide(num_pages=10**6)
    with pytest.raises(ConfigError, match="no memory is left"):
        divide(free=0)
