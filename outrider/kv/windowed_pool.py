"""The cache of a model whose layers with a sliding window have pages of their own."""

from collections.abc import Sequence

import torch

from outrider.kv.kv_pool import KVLayout, KVPool


class WindowedPool:
    """Owns nothing: it names the two pools of a model by layer. One of them may have no layers."""

    def __init__(self, *, whole: KVPool, windowed: KVPool, is_windowed: Sequence[bool]) -> None:
        self.whole = whole
        self.windowed = windowed
        self._is_windowed = tuple(is_windowed)  # of each layer

    @property
    def layout(self) -> KVLayout:
        """Of layers that see the whole text; a page has as many tokens in both."""
        return self.whole.layout

    @property
    def layers(self) -> tuple[torch.Tensor, ...]:
        """Of each layer, [pages, page_size, vectors, width] of its own pool."""
        whole, windowed = iter(self.whole.layers), iter(self.windowed.layers)
        return tuple([next(windowed if own else whole) for own in self._is_windowed])
