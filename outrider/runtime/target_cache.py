"""Where a target keeps its cache and how it attends, by the kind of model that it is."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from outrider.config.settings import USUAL_PAGE, Settings
from outrider.errors import ConfigError
from outrider.kv.choose_attention import choose_attention
from outrider.kv.head_shape import HeadShape
from outrider.kv.kv_pool import KVLayout, ModelPool, PageFamily
from outrider.models.decoder import Decoder
from outrider.models.deepseek_v4.compressed_cache import CompressedLayout, CompressedPool
from outrider.models.deepseek_v4.compressed_plan import CompressedAttention
from outrider.models.deepseek_v4.compression import CompressedBlocks
from outrider.models.deepseek_v4.v4_config import V4Config
from outrider.models.deepseek_v4.v4_decoder import V4Decoder
from outrider.models.model_config import AnyAttention, LatentConfig, ModelConfig
from outrider.models.recurrent.recurrence import Recurrence
from outrider.models.recurrent.recurrent_cache import RecurrentLayout, RecurrentPool
from outrider.models.recurrent.recurrent_plan import RecurrentAttention
from outrider.models.target import Target
from outrider.runtime.draft_kinds import DraftKind
from outrider.runtime.kv_capacity import free_bytes
from outrider.step.attention_backend import AttentionBackend, AttentionPlanner

_log = logging.getLogger(__name__)

# What lives in rows grows with the chain: a row of DeepSeek-V4-Flash (43 layers, bfloat16) has 11.5
# MB of rings at 1 node, 14.4 at 16 and 23.7 at 64, where 256 rows would take 6 GB from the pages.
MOST_ROW_NODES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """A target's cache, and who attends: the target itself, and models that draft for it."""

    kv: ModelPool
    target: AttentionPlanner
    drafts: AttentionBackend


def open_store(model: Target, settings: Settings, draft: DraftKind, pages: PageFamily) -> Store:
    """The cache with as many pages as the family has for now."""
    if isinstance(model, V4Decoder):
        return _open_compressed(model, settings, draft, pages)
    assert isinstance(model, Decoder), "every other target is one of these"
    users = (model.config.attention, *draft.attention)
    backend = _backend(settings, model.dtype, [_heads(user) for user in users])
    check_heads(backend, users)
    page_size, nodes = settings.host.page_size, draft.facts.budget.nodes
    layout = decoder_layout(model, page_size=page_size, nodes=nodes)
    if isinstance(layout, KVLayout):
        return Store(kv=pages.open(layout), target=backend, drafts=backend)
    kv = RecurrentPool(
        layout,
        table_rows=settings.host.max_rows + 1,
        num_pages=pages.num_pages,
        device=model.embedding.device,
    )
    target = RecurrentAttention(backend, layout, kv.state_lengths)
    return Store(kv=pages.adopt(kv), target=target, drafts=backend)


def decoder_layout(model: Decoder, *, page_size: int, nodes: int) -> KVLayout | RecurrentLayout:
    """What the decoder stores, for chains of up to that many nodes where that matters."""
    config = model.config
    layout = KVLayout(
        layers=len(config.attending),
        vectors=config.attention.vectors,
        width=config.attention.width,
        page_size=page_size,
        dtype=model.dtype,
    )
    if not isinstance(config.recurrence, Recurrence):
        return layout
    return RecurrentLayout(
        kv=layout, recurrence=config.recurrence, num_layers=config.num_layers, nodes=nodes
    )


def adapt_settings(model: Target, settings: Settings) -> Settings:
    """The settings as this model can have them; what is switched off is logged."""
    if not _has_row_state(model) or not settings.host.prefix_cache:
        return settings
    _log.warning("prefix caching is off: a part of this model's past lives in rows, not in pages")
    return replace(settings, host=replace(settings.host, prefix_cache=False))


def usual_page_size(config: ModelConfig | V4Config) -> int:
    """Tokens per page where nobody asks for another size: a page holds whole blocks."""
    if not isinstance(config, V4Config):
        return USUAL_PAGE
    layers = config.attention.layers
    return math.lcm(
        USUAL_PAGE, *(kind.ratio for kind in layers if isinstance(kind, CompressedBlocks))
    )


def check_rows(model: Target, settings: Settings, draft: DraftKind) -> None:
    """Refuse, before anything is made, pages, chains and rows that a past in rows forbids."""
    host, budget = settings.host, draft.facts.budget
    layout = _row_layout(model, page_size=host.page_size, nodes=budget.nodes)
    if isinstance(layout, KVLayout):
        return
    if budget.nodes > MOST_ROW_NODES and budget.topk == 1:  # trees are refused for what they are
        raise ConfigError(
            f"this model can take back chains of at most {MOST_ROW_NODES} nodes, and "
            f"{budget.nodes} were asked for; use --nodes {MOST_ROW_NODES}, or drafts of "
            f"{MOST_ROW_NODES - 1} steps"
        )
    if isinstance(layout, CompressedLayout):
        check_page_size(layout)
    device = torch.device(settings.device)
    room = free_bytes("auto", device=device, memory_share=settings.memory_share)
    needed = layout.row_bytes * (host.max_rows + 1)
    if needed > room:
        raise ConfigError(
            f"what {host.max_rows} rows keep besides pages takes {needed / 1e9:.1f} GB and "
            f"{room / 1e9:.1f} GB are free; lower max_num_seqs to "
            f"{max(room // 2 // layout.row_bytes - 1, 1)}, which leaves half of them for pages"
        )


def has_row_state(config: ModelConfig | V4Config) -> bool:
    """Whether rows keep what pages do not: such models check chains, and share no prefixes."""
    return isinstance(config, V4Config) or bool(config.recurrence.layers)


def _has_row_state(model: Target) -> bool:
    config = model.config
    assert isinstance(config, ModelConfig | V4Config), "every target has one of these"
    return has_row_state(config)


def _row_layout(
    model: Target, *, page_size: int, nodes: int
) -> KVLayout | CompressedLayout | RecurrentLayout:
    if isinstance(model, V4Decoder):
        return model.layout(page_size=page_size, nodes=nodes)
    assert isinstance(model, Decoder), "every other target is one of these"
    return decoder_layout(model, page_size=page_size, nodes=nodes)


def _open_compressed(
    model: V4Decoder, settings: Settings, draft: DraftKind, pages: PageFamily
) -> Store:
    host = settings.host
    layout = model.layout(page_size=host.page_size, nodes=draft.facts.budget.nodes)
    table_rows = host.max_rows + 1
    kv = CompressedPool(
        layout, table_rows=table_rows, num_pages=pages.num_pages, device=model.embedding.device
    )
    heads = model.config.attention.heads
    users = [_heads(user) for user in draft.attention]
    own = HeadShape(heads=heads.heads, head_dim=heads.head_dim)  # sizes nothing if nobody drafts
    drafts = _backend(settings, layout.dtype, users or [own])
    if draft.attention:
        check_heads(drafts, draft.attention)
    return Store(
        kv=pages.adopt(kv),
        target=CompressedAttention(layout, table_rows=table_rows),
        drafts=drafts,
    )


def check_page_size(layout: CompressedLayout) -> None:
    """Refuse pages that do not hold whole blocks."""
    ratios = sorted({blocks.ratio for blocks in layout.blocks})
    if any(layout.page_size % ratio for ratio in ratios):
        raise ConfigError(
            f"this model compresses blocks of {' and '.join(map(str, ratios))} tokens, and a page "
            f"of {layout.page_size} does not hold whole ones; use block_size={math.lcm(*ratios)}"
        )


def check_heads(backend: AttentionBackend, users: Sequence[AnyAttention]) -> None:
    """Refuse heads that the backend has no kernel for."""
    can = backend.capabilities
    for heads in users:
        if isinstance(heads, LatentConfig):
            if max(heads.latent, heads.rope) > can.max_latent:
                raise ConfigError(
                    f"attention on this device takes latents of up to {can.max_latent} lanes, and "
                    f"the model has {heads.latent}; use --device cpu"
                )
            continue
        group = heads.heads // heads.kv_heads
        if heads.head_dim > can.max_head_dim or group > can.max_group:
            raise ConfigError(
                f"attention on this device takes heads of up to {can.max_head_dim} and up to "
                f"{can.max_group} of them per key, and the model has {heads.head_dim} and {group}; "
                "use --device cpu"
            )


def _backend(settings: Settings, dtype: torch.dtype, users: list[HeadShape]) -> AttentionBackend:
    device, page_size = torch.device(settings.device), settings.host.page_size
    return choose_attention(device, page_size=page_size, dtype=dtype, users=users)


def _heads(config: AnyAttention) -> HeadShape:
    """Query heads, and the width of what each of them reads."""
    if isinstance(config, LatentConfig):
        return HeadShape(heads=config.heads, head_dim=config.latent, is_latent=True)
    return HeadShape(heads=config.heads, head_dim=config.head_dim)
