"""The attention part of a DeepSeek-V4 layer: low-rank queries over one shared vector per token,
a window of them and entries of older blocks, and a grouped low-rank output.
"""

from dataclasses import dataclass

import torch

from outrider.attention.sparse import Tokens, attend
from outrider.memory.compressed import LayerStore
from outrider.models.layers.linear import Linear
from outrider.models.layers.norm import Norm
from outrider.models.v4.blocks import BlockReader, NoBlockReader, V4Step, Wanted
from outrider.models.v4.config import HeadsConfig
from outrider.models.v4.grouped import GroupedLinear
from outrider.models.v4.rotation import rotate_tail


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionMaps:
    """The linear maps of a layer, those with one input fused."""

    read: Linear  # x to low-rank query, vector, state of open blocks, index weights
    query: Linear  # low-rank query to heads, index heads
    groups: GroupedLinear
    output: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionNorms:
    """Norms and sinks of a layer."""

    low_query: Norm
    query: Norm  # weights are one: heads have no scale of their own
    vector: Norm
    sinks: torch.Tensor  # [heads] float32


class V4Attention:
    """Owns the weights of one layer's attention."""

    def __init__(
        self,
        config: HeadsConfig,
        *,
        maps: AttentionMaps,
        norms: AttentionNorms,
        blocks: BlockReader,
        widths: tuple[int, int],  # of a state, and of index weights
    ) -> None:
        self._config = config
        self._maps = maps
        self._norms = norms
        self._blocks = blocks
        self._read_widths = [config.query_rank, config.head_dim, *widths]
        self._scale = config.head_dim**-0.5

    def __call__(
        self,
        x: torch.Tensor,  # [num_query, hidden] normalised
        store: LayerStore,
        step: V4Step,
    ) -> torch.Tensor:  # [num_query, hidden]
        config, norms, num_query = self._config, self._norms, x.shape[0]
        rotation = step.in_window if isinstance(self._blocks, NoBlockReader) else step.in_blocks
        low, vector, state, weights = torch.split(self._maps.read(x), self._read_widths, dim=1)
        wide = config.heads * config.head_dim
        heads = self._maps.query(norms.low_query(low))  # [num_query, wide + index]
        query = heads[:, :wide].view(num_query, config.heads, config.head_dim)
        query = rotate_tail(norms.query(query), rotation)
        window = Tokens(
            store.window, rotate_tail(norms.vector(vector)[:, None], rotation).squeeze(1)
        )
        wanted = Wanted(state=state, index=heads[:, wide:], weights=weights)
        entries = self._blocks(wanted, store, step)
        part = step.plan.window
        out = attend(query, window, part.sources, entries, norms.sinks, self._scale)
        window.keep(part)
        self._blocks.keep(wanted, store, step)
        out = rotate_tail(out, rotation.back)  # values had turned with their keys
        return self._maps.output(self._maps.groups(out.view(num_query, config.output_groups, -1)))
