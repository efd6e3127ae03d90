"""The attention part of a DeepSeek-V4 layer: low-rank queries over one vector per token, in a
sliding window and in compressed entries of older blocks, and a grouped low-rank output.
"""

from dataclasses import dataclass

import torch

from outrider.models.deepseek_v4.compressed_cache import LayerStore
from outrider.models.deepseek_v4.v4_blocks import BlockInputs, BlockReader, NoBlockReader, V4Step
from outrider.models.deepseek_v4.v4_config import HeadsConfig
from outrider.ops.linear.grouped_linear import GroupedLinear
from outrider.ops.linear.linear import Linear
from outrider.ops.norm_rope.partial_rope import (
    TailRotation,
    VectorNorm,
    norm_and_rotate,
    rotate_tail,
)
from outrider.ops.norm_rope.rms_norm import Norm
from outrider.ops.sparse.ring_tokens import RingTokens
from outrider.ops.sparse.sparse_attention import sparse_attention


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionProjections:
    """The projections of a layer; those that share their input are fused."""

    read: Linear  # x to low-rank query, vector, compressor state, index weights
    query: Linear  # low-rank query to heads, index heads
    groups: GroupedLinear
    output: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionNorms:
    """Norms and sinks of a layer."""

    low_query: Norm
    query: VectorNorm  # of every head
    vector: VectorNorm
    sinks: torch.Tensor  # [heads] float32


class V4Attention:
    """Owns the weights of one layer's attention."""

    def __init__(
        self,
        config: HeadsConfig,
        *,
        projections: AttentionProjections,
        norms: AttentionNorms,
        blocks: BlockReader,
        widths: tuple[int, int],  # of compressor states, and of index weights
    ) -> None:
        self._config = config
        self._projections = projections
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
        low, vector, states, weights = torch.split(
            self._projections.read(x), self._read_widths, dim=1
        )
        wide = config.heads * config.head_dim
        heads = self._projections.query(norms.low_query(low))  # [num_query, wide + index]
        query = heads[:, :wide].view(num_query, config.heads, config.head_dim)
        query = norm_and_rotate(query, norms.query, rotation)
        window = RingTokens(store.window, self._stored(vector, rotation))
        inputs = BlockInputs(states=states, index=heads[:, wide:], weights=weights)
        entries = self._blocks(inputs, store, step)
        out = sparse_attention(query, window, step.index, entries, norms.sinks, self._scale)
        window.save(step.index.window.ring)
        self._blocks.save(inputs, store, step)
        out = rotate_tail(out, rotation, back=True)  # a value is its key, which was rotated
        return self._projections.output(
            self._projections.groups(out.view(num_query, config.output_groups, -1))
        )

    def write_window(
        self,
        x: torch.Tensor,  # [num_query, hidden]
        store: LayerStore,
        step: V4Step,
    ) -> None:
        """Save the vectors of query tokens whose own output is not needed. It has no blocks."""
        vector = torch.split(self._projections.read(x), self._read_widths, dim=1)[1]
        window = RingTokens(store.window, self._stored(vector, step.in_window))
        window.save(step.index.window.ring)

    def _stored(
        self, vector: torch.Tensor, rotation: TailRotation
    ) -> torch.Tensor:  # [num_query, head_dim] both
        """Vectors as they are stored: normalised and rotated."""
        return norm_and_rotate(vector[:, None], self._norms.vector, rotation).squeeze(1)
