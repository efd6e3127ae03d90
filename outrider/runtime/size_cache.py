"""Divides the memory that is left between KV pages and snapshots of row state."""

from dataclasses import dataclass

import torch

from outrider.config.engine_config import Auto
from outrider.config.settings import Settings
from outrider.distributed.rank_group import RankGroup
from outrider.runtime.draft_kinds import DraftRoom
from outrider.runtime.kv_capacity import FixedPages, count_pages, count_snapshots, free_bytes
from outrider.runtime.program import MAX_SCORED
from outrider.runtime.row_images import count_row_bytes
from outrider.runtime.runner import Runner
from outrider.runtime.warmup import take_memory
from outrider.wire.runner_facts import SnapshotFacts

_SNAPSHOT_TOKENS = 32  # from one snapshot to the next (docs/decisions/0020)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedCache:
    """What the user wants, or what an earlier runner had."""

    kv_tokens: int | Auto | FixedPages
    row_snapshots: int | Auto = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedCache:
    """What there is room for."""

    num_pages: int  # usable ones
    snapshots: SnapshotFacts


def size_cache(
    requested: RequestedCache,
    settings: Settings,
    room: DraftRoom,
    dummy_runner: Runner,
    ranks: RankGroup,
    *,
    reach: int,
    mask_bytes: int,
) -> SizedCache:
    """Give the KV pools the memory that is left, and return their usable pages."""
    row_bytes = count_row_bytes(room.cache.pages.row_tensors)
    snapshots, num_pages = requested.row_snapshots, requested.kv_tokens
    if not settings.host.prefix_cache:
        snapshots = 0
    if isinstance(num_pages, FixedPages):
        assert snapshots != "auto", "an earlier runner counted them"
        num_snapshots, num_pages = snapshots, num_pages.num_pages
    else:
        reserved = _reserved_bytes(dummy_runner, room, settings, mask_bytes)
        ranks.least(0)  # ranks on the same device have all taken what they need, and no pages
        left = _left_bytes(settings, num_pages) - reserved
        num_snapshots = count_snapshots(
            snapshots,
            row_bytes=row_bytes,
            max_rows=settings.host.max_rows,
            free_bytes=left,
            page_bytes=_requested_bytes(room, settings, num_pages),
        )
        left -= num_snapshots * row_bytes
        # One scheduler hands out the same pages and slots on all ranks.
        num_pages = ranks.least(_count_pages(room, settings, num_pages, reach, left))
        num_snapshots = ranks.least(num_snapshots)
    room.cache.pages.resize(num_pages + 1)
    page_size = settings.host.page_size
    return SizedCache(
        num_pages=num_pages,
        snapshots=SnapshotFacts(
            num=num_snapshots,
            row_bytes=row_bytes,
            every=-(-_SNAPSHOT_TOKENS // page_size) * page_size,
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
    room: DraftRoom, settings: Settings, kv_tokens: int | Auto, reach: int, left: int
) -> int:
    host = settings.host
    return count_pages(
        kv_tokens,
        page_size=host.page_size,
        page_bytes=room.cache.pages.page_bytes,
        most_pages=host.max_rows * -(-reach // host.page_size),
        free_bytes=left,
    )
