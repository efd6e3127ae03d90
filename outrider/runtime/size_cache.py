"""Divides the memory that is left between KV pages, window pages and snapshots of row state."""

from dataclasses import dataclass
from functools import partial

import torch

from outrider.config.engine_config import Auto
from outrider.config.settings import Settings
from outrider.distributed.rank_group import RankGroup
from outrider.runtime.divide_pages import PageCounts, PageSizes, divide_pages
from outrider.runtime.draft_kinds import DraftRoom
from outrider.runtime.kv_capacity import FixedPages, count_pages, count_snapshots, free_bytes
from outrider.runtime.program import MAX_SCORED
from outrider.runtime.row_images import count_row_bytes
from outrider.runtime.runner import Runner
from outrider.runtime.warmup import take_memory
from outrider.wire.runner_facts import SnapshotFacts
from outrider.wire.window_facts import WindowFacts, most_window_pages

_SNAPSHOT_TOKENS = 32  # from one snapshot to the next (docs/decisions/0020)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedCache:
    """What the user wants, or what an earlier runner had."""

    kv_tokens: int | Auto | FixedPages
    row_snapshots: int | Auto = "auto"
    window_tokens: int | Auto = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReach:
    """Positions that a row may touch."""

    tokens: int  # in all: its context, and rounds in flight past its end
    of_round: int  # past the cached ones, in a round


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedCache:
    """What there is room for."""

    num_pages: int  # usable ones
    snapshots: SnapshotFacts
    windows: WindowFacts


def size_cache(
    requested: RequestedCache,
    settings: Settings,
    room: DraftRoom,
    dummy_runner: Runner,
    ranks: RankGroup,
    *,
    reach: RowReach,
    mask_bytes: int,
) -> SizedCache:
    """Give the KV pools the memory that is left, and return their usable pages."""
    row_bytes = count_row_bytes(room.cache.pages.row_tensors)
    snapshots, kv_tokens = requested.row_snapshots, requested.kv_tokens
    if not settings.host.prefix_cache:
        snapshots = 0
    if isinstance(kv_tokens, FixedPages):
        assert snapshots != "auto", "an earlier runner counted them"
        num_snapshots, num_pages = snapshots, kv_tokens.num_pages
        num_window_pages = kv_tokens.num_window_pages
    else:
        reserved = _reserved_bytes(dummy_runner, room, settings, mask_bytes)
        ranks.least(0)  # ranks on the same device have all taken what they need, and no pages
        left = _left_bytes(settings, kv_tokens) - reserved
        num_snapshots = count_snapshots(
            snapshots,
            row_bytes=row_bytes,
            max_rows=settings.host.max_rows,
            free_bytes=left,
            page_bytes=_requested_bytes(room, settings, kv_tokens),
        )
        left -= num_snapshots * row_bytes
        counts = _count_pages(room, settings, requested, reach, left)
        # One scheduler hands out the same pages and slots on all ranks.
        num_pages = ranks.least(counts.num_pages)
        num_window_pages = ranks.least(counts.num_window_pages)
        num_snapshots = ranks.least(num_snapshots)
    pages, page_size = room.cache.pages, settings.host.page_size
    pages.resize(num_pages + 1, num_window_pages + 1)
    return SizedCache(
        num_pages=num_pages,
        snapshots=SnapshotFacts(
            num=num_snapshots,
            row_bytes=row_bytes,
            every=-(-_SNAPSHOT_TOKENS // page_size) * page_size,
        ),
        windows=WindowFacts(
            window=pages.window, num_pages=num_window_pages, page_bytes=pages.window_page_bytes
        ),
    )


def _reserved_bytes(
    dummy_runner: Runner, room: DraftRoom, settings: Settings, mask_bytes: int
) -> int:
    """What steps will take on a GPU besides pages."""
    device = torch.device(settings.device)
    if device.type != "cuda":
        return 0
    taken = take_memory(dummy_runner, room.largest, device)  # graphs take as much again
    # Logits processing and logprobs copy whole vocabularies in float32, three at a time.
    most_logits = max(room.largest.num_sampled, MAX_SCORED)
    return taken + 3 * 4 * most_logits * room.sampling.vocab + mask_bytes


def _left_bytes(settings: Settings, kv_tokens: int | Auto) -> int:
    return free_bytes(
        kv_tokens,
        device=torch.device(settings.device),
        memory_share=settings.memory_share,
        num_sharing=settings.num_sharing,
    )


def _requested_bytes(room: DraftRoom, settings: Settings, kv_tokens: int | Auto) -> int:
    """What the pages take that the user wants; 0 if they may have what is left."""
    if kv_tokens == "auto":
        return 0
    return -(-kv_tokens // settings.host.page_size) * room.cache.pages.page_bytes


def _count_pages(
    room: DraftRoom, settings: Settings, requested: RequestedCache, reach: RowReach, left: int
) -> PageCounts:
    host, pages, kv_tokens = settings.host, room.cache.pages, requested.kv_tokens
    assert not isinstance(kv_tokens, FixedPages), "these are counted"
    most_pages = host.max_rows * -(-reach.tokens // host.page_size)
    if pages.window.tokens:
        sizes = _window_sizes(room, settings, reach, most_pages)
        return divide_pages(
            sizes,
            num_pages=_in_pages(kv_tokens, host.page_size),
            num_window_pages=_in_pages(requested.window_tokens, host.page_size),
            free_bytes=left,
        )
    num_pages = count_pages(
        kv_tokens,
        page_size=host.page_size,
        page_bytes=pages.page_bytes,
        most_pages=most_pages,
        free_bytes=left,
    )
    return PageCounts(num_pages=num_pages, num_window_pages=0)


def _window_sizes(
    room: DraftRoom, settings: Settings, reach: RowReach, most_pages: int
) -> PageSizes:
    host, pages = settings.host, room.cache.pages
    of_one = partial(
        most_window_pages,
        pages.window.tokens,
        page_size=host.page_size,
        reach=reach.of_round,
        depth=settings.execution.depth,
    )
    of_chunks = -(-host.max_step_tokens // host.page_size)  # of all rows together
    return PageSizes(
        page_size=host.page_size,
        page_bytes=pages.page_bytes,
        window_page_bytes=pages.window_page_bytes,
        most_pages=most_pages,
        most_in_one=of_one(step_tokens=host.max_step_tokens),
        most_in_windows=host.max_rows * of_one(step_tokens=0) + of_chunks,
    )


def _in_pages(tokens: int | Auto, page_size: int) -> int | Auto:
    return tokens if tokens == "auto" else -(-tokens // page_size)
