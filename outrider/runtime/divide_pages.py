"""Divides the memory for KV between pages and window pages (docs/decisions/0021)."""

from dataclasses import dataclass

from outrider.config.engine_config import Auto
from outrider.errors import ConfigError

_ENDS_SHARE = 0.25  # of pages: window pages for the ends of cached texts of four windows each
_MOST_FOR_ENDS = 0.5  # of the bytes of pages, or long texts would lose more than short ones gain
_SHORT_SHARE = 0.8  # of the texts shorter than a window that fitted without window pages


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSizes:
    """Bytes of pages, and how many rows can need."""

    page_size: int  # tokens
    page_bytes: int  # 0 if all layers have window pages
    window_page_bytes: int
    most_pages: int  # of all rows at the ends of their contexts
    most_in_windows: int  # window pages of all rows
    most_in_one: int  # window pages of a row with a whole step


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCounts:
    """Usable pages of both kinds."""

    num_pages: int
    num_window_pages: int


def divide_pages(
    sizes: PageSizes,
    *,
    num_pages: int | Auto,  # auto: what fits, up to the most that can be used
    num_window_pages: int | Auto,
    free_bytes: int,
) -> PageCounts:
    """As many pages of both kinds as were requested, or as there is memory for."""
    if num_window_pages == "auto":
        if num_pages == "auto":
            return _divide(sizes, free_bytes)
        num_window_pages = _usable(sizes, num_pages, free_bytes)
    left = free_bytes - num_window_pages * sizes.window_page_bytes
    if num_pages == "auto":
        num_pages = _most_within(sizes, left)
    needed = num_pages * sizes.page_bytes
    if not num_pages or needed > left:
        raise ConfigError(
            f"KV pages take {needed / 1e9:.1f} GB, window pages {(free_bytes - left) / 1e9:.1f} GB "
            f"and {max(free_bytes, 0) / 1e9:.1f} GB are free; lower kv_tokens, window_tokens or "
            "max_num_seqs, raise gpu_memory_utilization on a GPU, or use a smaller model"
        )
    if num_window_pages < min(sizes.most_in_one, num_pages):
        raise ConfigError(
            f"one request can need {sizes.most_in_one * sizes.page_size} tokens in window pages; "
            "raise window_tokens, lower max_num_batched_tokens, or leave both out"
        )
    return PageCounts(num_pages=num_pages, num_window_pages=num_window_pages)


def _divide(sizes: PageSizes, free_bytes: int) -> PageCounts:
    """Window pages for rows and for ends of cached texts; then pages; the rest are window pages.

    Where rows would need too much, short texts lose a fifth of their room: long ones gain more.
    """
    both = max(free_bytes, 0) // (sizes.page_bytes + sizes.window_page_bytes)
    if not both:
        raise ConfigError(
            "no memory is left for the KV cache; free some, raise gpu_memory_utilization on a "
            "GPU, lower max_num_seqs or use a smaller model"
        )
    share = int(both * _SHORT_SHARE) if sizes.page_bytes else both
    in_windows = max(min(_wanted(sizes, free_bytes), share), sizes.most_in_one)
    num_pages = _most_within(sizes, free_bytes - in_windows * sizes.window_page_bytes)
    if num_pages <= in_windows:
        # With as many of both, a text whose pages are there has its window pages, too.
        num_pages = in_windows = min(both, sizes.most_pages)
    rest = (free_bytes - num_pages * sizes.page_bytes) // sizes.window_page_bytes
    return PageCounts(num_pages=num_pages, num_window_pages=min(rest, num_pages))


def _usable(sizes: PageSizes, num_pages: int, free_bytes: int) -> int:
    """Window pages that texts on so many pages can use: rows must have theirs, ends may."""
    needed = max(sizes.most_in_windows, sizes.most_in_one)
    fitting = (free_bytes - num_pages * sizes.page_bytes) // sizes.window_page_bytes
    ends = int(num_pages * _ends_per_page(sizes))
    return min(num_pages, max(needed, min(sizes.most_in_windows + ends, fitting)))


def _wanted(sizes: PageSizes, free_bytes: int) -> int:
    """What rows can need, and ends for the texts on the pages that are left then."""
    per_page = _ends_per_page(sizes)
    left = max(free_bytes - sizes.most_in_windows * sizes.window_page_bytes, 0)
    num_pages = left / (sizes.page_bytes + per_page * sizes.window_page_bytes)
    return sizes.most_in_windows + int(min(num_pages, sizes.most_pages) * per_page)


def _ends_per_page(sizes: PageSizes) -> float:
    """Window pages for the ends of cached texts, per page."""
    if not sizes.page_bytes:
        return _ENDS_SHARE
    return min(_ENDS_SHARE, _MOST_FOR_ENDS * sizes.page_bytes / sizes.window_page_bytes)


def _most_within(sizes: PageSizes, num_bytes: int) -> int:
    """Pages that fit into so many bytes, up to the most that can be used."""
    if num_bytes < 0:
        return 0
    fitting = num_bytes // sizes.page_bytes if sizes.page_bytes else sizes.most_pages
    return min(fitting, sizes.most_pages)
