"""The cache of models with recurrent layers: pages of KV for the layers that attend, and per row a
recurrent state, the node inputs of the last step, and a ring buffer for the convolution.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from outrider.kv.kv_pool import KVLayout, KVPool
from outrider.kv.ring_buffer import ring_length
from outrider.models.cache_layout import CacheRoom, OpenCache
from outrider.models.model_config import AnyAttention
from outrider.models.recurrent.recurrence import Recurrence
from outrider.models.recurrent.recurrent_plan import RecurrentAttention
from outrider.ops.recurrent.recurrent_rows import RecurrentState
from outrider.step.zeroed_memory import zeroed

_STATE_BYTES = 4  # states are float32: rounding errors of thousands of tokens add up in them


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentLayout:
    """Sizes of all layers' caches. `nodes` is the longest chain that one step may write."""

    kv: KVLayout  # of the layers that attend
    attention: AnyAttention
    recurrence: Recurrence
    num_layers: int
    nodes: int

    @property
    def page_size(self) -> int:
        return self.kv.page_size

    @property
    def dtype(self) -> torch.dtype:
        return self.kv.dtype

    @property
    def ring_length(self) -> int:
        """Length of the ring buffer that the convolution reads."""
        return ring_length(self.recurrence.window, self.nodes)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's state over all layers."""
        sizes = self.recurrence
        channels = self.ring_length * sizes.qkv + self.nodes * sizes.node_inputs
        each = sizes.state * _STATE_BYTES + channels * self.dtype.itemsize
        return len(sizes.layers) * each

    @property
    def heads(self) -> Sequence[AnyAttention]:
        return (self.attention,)

    def check(self) -> None:
        pass  # the backend says which page sizes it has

    def open(self, room: CacheRoom) -> "OpenCache[RecurrentPool, RecurrentAttention]":
        pages = room.pages
        pool = RecurrentPool(
            self, table_rows=room.table_rows, num_pages=pages.num_pages, device=pages.device
        )
        attention = RecurrentAttention(
            room.backend,
            pool.state_lengths,
            window=self.recurrence.window,
            ring_length=self.ring_length,
            nodes=self.nodes,
        )
        return OpenCache(pool=pages.adopt(pool), attention=attention)


RecurrentStore = torch.Tensor | RecurrentState  # [pages, page_size, vectors, width], or row state


class RecurrentPool:
    """Owns the pages and the row state of all layers.

    The recurrent states of a row contain its first `state_lengths[row]` tokens.
    """

    def __init__(
        self, layout: RecurrentLayout, *, table_rows: int, num_pages: int, device: torch.device
    ) -> None:
        self.layout = layout
        self.state_lengths = torch.zeros(table_rows, dtype=torch.int64, device=device)
        self._kv = KVPool(layout.kv, num_pages=num_pages, device=device)
        num_states = len(layout.recurrence.layers)
        self._states = tuple(_make_state(layout, table_rows, device) for _ in range(num_states))

    @property
    def layers(self) -> tuple[RecurrentStore, ...]:
        """In the order of the model's layers."""
        pages, states = iter(self._kv.layers), iter(self._states)
        recurrent = self.layout.recurrence.layers
        return tuple(
            next(states) if layer in recurrent else next(pages)
            for layer in range(self.layout.num_layers)
        )

    @property
    def page_bytes(self) -> int:
        return max(1, self.layout.kv.page_bytes)

    @property
    def tensors(self) -> Iterator[torch.Tensor]:
        yield from self._kv.tensors
        yield from self._row_state

    @property
    def page_tensors(self) -> Iterator[torch.Tensor]:
        yield from self._kv.page_tensors

    @property
    def row_tensors(self) -> Iterator[torch.Tensor]:
        rows = self.state_lengths.shape[0]
        yield self.state_lengths
        for layer in self._states:
            yield layer.window.view(rows, -1, layer.window.shape[1])
            yield from (layer.node_inputs, layer.state)

    @property
    def _row_state(self) -> Iterator[torch.Tensor]:
        yield self.state_lengths
        for layer in self._states:
            yield from (layer.window, layer.node_inputs, layer.state)

    def resize(self, num_pages: int) -> None:
        self._kv.resize(num_pages)

    def clean(self, pages: torch.Tensor) -> None:  # [n] int64
        """Zero the pages, and the state of all rows, which have ended."""
        self._kv.clean(pages)
        for tensor in self._row_state:
            tensor.zero_()


def _make_state(layout: RecurrentLayout, rows: int, device: torch.device) -> RecurrentState:
    sizes, nodes, dtype = layout.recurrence, layout.nodes, layout.dtype
    shape = (rows, sizes.value_heads, sizes.key_dim, sizes.value_dim)
    # Zeros, not empty: padding computes with row 0, and its results should be finite.
    return RecurrentState(
        window=zeroed(rows * layout.ring_length, sizes.qkv, dtype=dtype, device=device),
        node_inputs=zeroed(rows, nodes, sizes.node_inputs, dtype=dtype, device=device),
        state=zeroed(*shape, dtype=torch.float32, device=device),
    )
