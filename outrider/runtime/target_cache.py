"""Opens the cache that a target's layout declares, and refuses what the layout cannot do."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from outrider.config.attention_choice import AttentionName
from outrider.config.draft_config import MOST_ROW_NODES
from outrider.config.engine_config import KVDtype
from outrider.config.settings import HostSettings, Settings
from outrider.errors import ConfigError
from outrider.kv.choose_attention import choose_attention
from outrider.kv.head_shape import HeadShape
from outrider.kv.kv_pool import ModelPool, PageFamily
from outrider.models.cache_layout import CacheLayout, CacheRoom, OpenCache
from outrider.models.model_config import AnyAttention, LatentConfig
from outrider.models.paged_layout import PagedLayout
from outrider.models.recurrent.recurrent_cache import RecurrentLayout
from outrider.models.windowed_layout import split_windows
from outrider.runtime.draft_kinds import DraftKind
from outrider.runtime.kv_capacity import free_bytes
from outrider.step.attention_backend import AttentionBackend, AttentionPlanner
from outrider.wire.runner_facts import SnapshotFacts

_log = logging.getLogger(__name__)

AnyLayout = CacheLayout[ModelPool, AttentionPlanner]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCache:
    """The target's cache, and the room in which models that draft for it open theirs.

    Each has a backend of its own, so that it can be chosen by role.
    """

    target: OpenCache[ModelPool, AttentionPlanner]
    room: CacheRoom


def open_cache(
    layout: AnyLayout, settings: Settings, draft: DraftKind, pages: PageFamily
) -> TargetCache:
    """The cache with as many pages as the family has for now."""
    name = settings.attention.target
    if name != "auto" and not layout.heads:
        _log.warning("this model has attention of its own; --attention-backend %s is unused", name)
    open_backend = partial(_open_backend, settings, layout.dtype)
    room = CacheRoom(
        pages=pages,
        table_rows=settings.host.max_rows + 1,
        backend=open_backend(name, layout.heads),
    )
    for_drafts = replace(room, backend=open_backend(settings.attention.draft, draft.attention))
    return TargetCache(target=layout.open(room), room=for_drafts)


def _open_backend(
    settings: Settings, dtype: torch.dtype, name: AttentionName, users: Sequence[AnyAttention]
) -> AttentionBackend:
    """The backend for the layers of one role."""
    backend = choose_attention(
        name,
        torch.device(settings.device),
        page_size=settings.host.page_size,
        dtype=dtype,
        users=[_heads(user) for user in users],
    )
    check_heads(backend, users)
    return backend


def narrow_layout(layout: AnyLayout, kv_dtype: KVDtype) -> AnyLayout:
    """The layout with keys and values stored in this type."""
    activations = str(layout.dtype).removeprefix("torch.")
    if kv_dtype in ("auto", activations):
        return layout
    if kv_dtype in ("bfloat16", "float16", "float32"):
        raise ConfigError(
            f"--kv-cache-dtype {kv_dtype}: keys and values have the type of activations, "
            f"{activations} here, or fp8; leave it out, or use --dtype"
        )
    has_latents = any(isinstance(each, LatentConfig) for each in layout.heads)
    if has_latents or not isinstance(layout, PagedLayout | RecurrentLayout):
        raise ConfigError(
            f"--kv-cache-dtype {kv_dtype} is for keys and values, and this model stores latents or "
            "compressed blocks, which kernels read in the type of activations; leave it out"
        )
    return replace(layout, kv=replace(layout.kv, kv_dtype=kv_dtype))


def window_layout(layout: AnyLayout, settings: Settings) -> AnyLayout:
    """The layout with window pages, if the model has layers that do not see whole texts."""
    if not settings.has_window_pages or not isinstance(layout, PagedLayout):
        return layout
    return split_windows(layout, max_context=settings.host.max_context)


def adapt_host(host: HostSettings, snapshots: SnapshotFacts) -> HostSettings:
    """The settings as this model can have them; what is switched off is logged."""
    if not snapshots.row_bytes or snapshots.num or not host.prefix_cache:
        return host
    _log.warning(
        "prefix caching is off: this model has row state, and there is no room for a snapshot of "
        "it; raise --row-snapshots, or lower kv_tokens or max_num_seqs"
    )
    return replace(host, prefix_cache=False)


def check_rows(layout: AnyLayout, settings: Settings, draft: DraftKind) -> None:
    """Refuse pages, chains and numbers of rows that row state does not allow."""
    host, budget = settings.host, draft.facts.budget
    if not layout.row_bytes:
        return
    if budget.nodes > MOST_ROW_NODES and budget.topk == 1:  # trees have a message of their own
        raise ConfigError(
            f"this model can take back chains of at most {MOST_ROW_NODES} nodes, and "
            f"{budget.nodes} were requested; use --nodes {MOST_ROW_NODES}, or drafts of "
            f"{MOST_ROW_NODES - 1} steps"
        )
    layout.check()
    device = torch.device(settings.device)
    room = free_bytes(
        "auto",
        device=device,
        memory_share=settings.memory_share,
        num_sharing=settings.num_sharing,
    )
    needed = layout.row_bytes * (host.max_rows + 1)
    if needed > room:
        raise ConfigError(
            f"what {host.max_rows} rows hold besides pages takes {needed / 1e9:.1f} GB and "
            f"{room / 1e9:.1f} GB are free; lower max_num_seqs to "
            f"{max(room // 2 // layout.row_bytes - 1, 1)}, which leaves half of them for pages"
        )


def check_heads(backend: AttentionBackend, users: Sequence[AnyAttention]) -> None:
    """Refuse heads that the backend has no kernel for."""
    can = backend.capabilities
    for heads in users:
        if isinstance(heads, LatentConfig):
            if max(heads.latent, heads.rope) > can.max_latent:
                raise ConfigError(
                    f"attention on this device takes latents of up to {can.max_latent} channels, "
                    f"and the model has {heads.latent}; use --device cpu"
                )
            continue
        group = heads.heads // heads.kv_heads
        if heads.head_dim > can.max_head_dim or group > can.max_group:
            raise ConfigError(
                f"attention on this device takes heads of up to {can.max_head_dim} and up to "
                f"{can.max_group} of them per key, and the model has {heads.head_dim} and {group}; "
                "use --device cpu"
            )


def _heads(config: AnyAttention) -> HeadShape:
    """Query heads, and the width of the vectors that they read."""
    if isinstance(config, LatentConfig):
        return HeadShape(heads=config.heads, head_dim=config.latent, is_latent=True)
    return HeadShape(heads=config.heads, head_dim=config.head_dim)
