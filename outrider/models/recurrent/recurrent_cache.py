"""Storage of models with recurrent layers: pages for those that attend, and for the others a state
per row, the tokens it does not contain yet, and a ring of what its convolution reads.
"""

from dataclasses import dataclass

import torch

from outrider.kv.kv_pool import KVLayout, KVPool
from outrider.kv.ring_buffer import ring_length
from outrider.models.recurrent.recurrence import Recurrence

_STATE_BYTES = 4  # states are kept in float32: errors of thousands of tokens add up in them
_FAR = 1 << 20  # positions that noise may name


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentLayout:
    """Sizes of all layers' caches. `nodes` is the longest chain that one step may write."""

    kv: KVLayout  # of the layers that attend
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
    def ring(self) -> int:
        """Length of the ring that the convolution reads."""
        return ring_length(self.recurrence.window, self.nodes)

    @property
    def row_bytes(self) -> int:
        """Bytes of what one row keeps over all layers."""
        sizes = self.recurrence
        channels = self.ring * sizes.qkv + self.nodes * sizes.node_inputs
        each = sizes.state * _STATE_BYTES + channels * self.dtype.itemsize
        return len(sizes.layers) * each


@dataclass(frozen=True, slots=True, kw_only=True)
class StateStore:
    """What a recurrent layer keeps of every row."""

    window: torch.Tensor  # [slots, mixed] rings, row after row
    node_inputs: torch.Tensor  # [table_rows, nodes, pending] tokens of the last step, node by node
    state: torch.Tensor  # [table_rows, value_heads, key_dim, value_dim] float32


LayerStore = torch.Tensor | StateStore  # [pages, page_size, vectors, width], or states


class RecurrentPool:
    """Owns pages and states of all layers. `stands[row]` tokens are contained in a row's states."""

    def __init__(
        self, layout: RecurrentLayout, *, table_rows: int, num_pages: int, device: torch.device
    ) -> None:
        self.layout = layout
        self.state_lengths = torch.zeros(table_rows, dtype=torch.int64, device=device)
        self._kv = KVPool(layout.kv, num_pages=num_pages, device=device)
        num_states = len(layout.recurrence.layers)
        self._states = tuple(_make_store(layout, table_rows, device) for _ in range(num_states))

    @property
    def layers(self) -> tuple[LayerStore, ...]:
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

    def resize(self, num_pages: int) -> None:
        """Start anew with that many pages, page 0 included; nothing may be recorded yet."""
        self._kv.resize(num_pages)

    def clean(self, pages: torch.Tensor) -> None:  # [n] int64
        """Make the pages what they were at first, and all states: no row lives on without them."""
        self._kv.clean(pages)
        self.state_lengths.zero_()
        for store in self._states:
            for part in (store.window, store.node_inputs, store.state):
                part.zero_()

    def scribble(self) -> None:
        """Fill every page and every state with noise."""
        self._kv.scribble()
        self.state_lengths.random_(0, _FAR)
        for store in self._states:
            for part in (store.window, store.node_inputs, store.state):
                part.normal_()


def _make_store(layout: RecurrentLayout, rows: int, device: torch.device) -> StateStore:
    sizes, nodes, dtype = layout.recurrence, layout.nodes, layout.dtype
    shape = (rows, sizes.value_heads, sizes.key_dim, sizes.value_dim)
    # Zeros, not empty: padding runs on row 0, and what it computes should be numbers.
    return StateStore(
        window=torch.zeros(rows * layout.ring, sizes.qkv, dtype=dtype, device=device),
        node_inputs=torch.zeros(rows, nodes, sizes.node_inputs, dtype=dtype, device=device),
        state=torch.zeros(shape, dtype=torch.float32, device=device),
    )
