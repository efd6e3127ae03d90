"""A step of an EAGLE-3 head over weights in tiles, in one parallel region on a CPU."""

from collections.abc import Sequence

import torch

from outrider.ops.attention.attend_in_place import QueryGroup
from outrider.ops.compiled.head_region import IS_OUTSIDE, run_head
from outrider.ops.compiled.thread_team import run_team
from outrider.ops.graph_break import graph_break
from outrider.ops.linear.joined_embedding import JoinedEmbedding, refuse_outside
from outrider.ops.linear.tile_layers import TileLayers, TileStep
from outrider.ops.norm_rope.rotary import RotaryFrequencies, Rotation
from outrider.ops.tree.plan_rows import Queries

_FUNCTION = int(run_head.address)


class TileHead:
    """Joins tokens with the hidden states before them, and runs the layer."""

    def __init__(
        self,
        join: JoinedEmbedding,
        layers: TileLayers,
        frequencies: RotaryFrequencies,  # in float32
        *,
        is_residual_normed: bool,
    ) -> None:
        self._join = join
        self._layers = layers
        self._frequencies = frequencies
        self._is_residual_normed = is_residual_normed

    def __call__(
        self,
        states: torch.Tensor,  # [num_query, width]
        queries: Queries,
        stored: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim] float32
        groups: Sequence[QueryGroup],
    ) -> torch.Tensor:  # [num_query, width]
        """The hidden states after the layer; writes the KV of every query token."""
        stream = states.new_empty(states.shape)
        graph_break(self._run, states.contiguous(), queries, stored, groups, stream)
        return stream

    def _run(
        self,
        states: torch.Tensor,
        queries: Queries,
        stored: torch.Tensor,
        groups: Sequence[QueryGroup],
        stream: torch.Tensor,
    ) -> None:
        rows, width = states.shape
        if not rows:
            return
        joined, rotary = torch.empty(rows, 2 * width), self._frequencies
        rotation = Rotation(*torch.empty(2, rows, 1, rotary.radians.shape[0]))
        step = TileStep(
            rotation=rotation, slots=queries.slots, groups=groups, aux_layers=(), aux=stream[:, :0]
        )
        layers = self._layers.call_of(joined, stream, [stored], step)
        fields = self._join.fields(
            queries.tokens, states_at=states.data_ptr(), joined_at=joined.data_ptr()
        )
        given = (
            *(rows, *fields, stream.data_ptr(), int(self._is_residual_normed)),
            *(rotary.radians.shape[0], queries.positions.data_ptr()),
            *(rotary.radians.data_ptr(), rotary.signs.data_ptr()),
            *(rotation.cos.data_ptr(), rotation.sin.data_ptr(), layers.address, 0),
        )
        refuse_outside(run_team(_FUNCTION, given)[IS_OUTSIDE])
        layers.refuse_outside()
