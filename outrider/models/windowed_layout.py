"""The cache of a model with sliding windows or attention chunks: its layers keep what they see."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from outrider.kv.kv_pool import KVLayout
from outrider.kv.windowed_planner import WindowedPlanner
from outrider.kv.windowed_pool import WindowedPool
from outrider.models.cache_layout import CacheRoom, OpenCache
from outrider.models.model_config import AnyAttention
from outrider.models.paged_layout import PagedLayout
from outrider.ops.attention.attention_rule import WHOLE_TEXT
from outrider.wire.window_facts import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedLayout:
    """Pages of KV in two pools, on the shared backend."""

    whole: KVLayout  # of the layers that see the whole text, if there are any
    windowed: KVLayout
    window: Window  # what a query of the others sees
    is_windowed: tuple[bool, ...]  # of each layer
    attention: AnyAttention

    @property
    def page_size(self) -> int:
        return self.whole.page_size

    @property
    def dtype(self) -> torch.dtype:
        return self.whole.dtype

    @property
    def row_bytes(self) -> int:
        return 0

    @property
    def heads(self) -> Sequence[AnyAttention]:
        return (self.attention,)

    def check(self) -> None:
        pass  # the backend says which page sizes it has

    def open(self, room: CacheRoom) -> OpenCache[WindowedPool, WindowedPlanner]:
        pool = WindowedPool(
            whole=room.pages.open(self.whole),
            windowed=room.pages.open_window(self.windowed, window=self.window),
            is_windowed=self.is_windowed,
        )
        planner = WindowedPlanner(room.backend, has_whole=self.whole.layers > 0)
        return OpenCache(pool=pool, attention=planner)


def split_windows(layout: PagedLayout, *, max_context: int) -> PagedLayout | WindowedLayout:
    """The layout with pages of their own for layers that do not see the whole of long texts."""
    longest = min(max_context, WHOLE_TEXT)  # a model may allow a longer text than memory holds
    is_windowed = tuple(each.tokens < longest for each in layout.windows)
    shorter = {each for each in layout.windows if each.tokens < longest}
    if len(shorter) != 1:
        return layout
    num_windowed = sum(is_windowed)
    return WindowedLayout(
        whole=replace(layout.kv, layers=layout.kv.layers - num_windowed),
        windowed=replace(layout.kv, layers=num_windowed),
        window=shorter.pop(),
        is_windowed=is_windowed,
        attention=layout.attention,
    )
