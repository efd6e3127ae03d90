"""The catch-up of an EAGLE-3 head over weights in tiles, in one parallel region on a CPU."""

import itertools
from dataclasses import dataclass

import torch

from outrider.ops.compiled.catch_up_region import IS_OUTSIDE, catch_up_rows
from outrider.ops.compiled.thread_team import run_team
from outrider.ops.graph_break import graph_break
from outrider.ops.linear.joined_embedding import JoinedEmbedding, refuse_outside
from outrider.ops.linear.normed_tiles import TileHeads
from outrider.ops.linear.tiled_product import NO_NORM, TiledProduct, assert_floats
from outrider.ops.norm_rope.rms_norm import Norm, with_eps
from outrider.ops.norm_rope.rotary import RotaryFrequencies
from outrider.ops.tree.plan_rows import Queries

_FUNCTION = int(catch_up_rows.address)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUpParts:
    """The parts of the head that a catch-up runs. None of them has a bias."""

    aux_norm: Norm  # weight [norms of a row, channels]; empty where there is none
    project: TiledProduct  # [aux -> width]
    join: JoinedEmbedding
    kv: TileHeads  # of keys and values alone
    frequencies: RotaryFrequencies  # in float32


class TileCatchUp:
    """Owns what the region reads of the weights."""

    def __init__(self, parts: CatchUpParts) -> None:
        self._parts = parts  # whose memory the table points to
        project, kv = parts.project, parts.kv
        fields = project.fields(NO_NORM), kv.qkv.fields(kv.norm)
        self._table = torch.tensor(fields, dtype=torch.int64)
        self._aux_norm = with_eps(parts.aux_norm.weight, parts.aux_norm.eps)
        self._num_norms, self._normed = 0, project.inputs
        if len(parts.aux_norm.weight):
            self._normed = parts.aux_norm.weight.shape[-1]
            self._num_norms = project.inputs // self._normed
        frequencies = parts.frequencies
        self._rotary = frequencies.radians.data_ptr(), frequencies.signs.data_ptr()
        self._aux_norms = self._num_norms, self._normed, self._aux_norm.data_ptr()

    def __call__(
        self,
        aux_hidden_states: torch.Tensor,  # [num_query, aux]
        queries: Queries,
        layer: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim] float32
    ) -> torch.Tensor:  # [num_query, width]
        """The projected hidden states; keys and values are written to their slots."""
        width = self._parts.project.outputs
        states = aux_hidden_states.new_empty(aux_hidden_states.shape[0], width)
        aux = aux_hidden_states.contiguous()
        graph_break(self._run, aux, queries, layer, states)
        return states

    def _run(
        self,
        aux: torch.Tensor,
        queries: Queries,
        layer: torch.Tensor,
        states: torch.Tensor,
    ) -> None:
        rows, parts = aux.shape[0], self._parts
        if not rows:
            return
        width, channels = parts.join.width, parts.kv.qkv.outputs
        num_slots, vectors, head_dim = layer.flatten(0, 1).shape
        assert_floats(aux, states, layer)
        sizes = 2 * width, channels, head_dim, head_dim, parts.project.inputs
        wide = torch.empty(rows * sum(sizes))
        starts = itertools.accumulate(sizes[:-1], initial=0)
        at = [wide.data_ptr() + rows * start * wide.itemsize for start in starts]
        joined, channels_at, cos, sin, normed = at
        size = max(each.scratch_bytes(rows) for each in (parts.project, parts.kv.qkv))
        scratch = torch.empty(size, dtype=torch.uint8)
        join = parts.join.fields(queries.tokens, states_at=states.data_ptr(), joined_at=joined)
        given = (
            *(self._table.data_ptr(), rows, aux.data_ptr(), *self._aux_norms),
            *(normed if self._num_norms else aux.data_ptr(), *join, channels_at, vectors),
            *(head_dim, cos, sin, layer.data_ptr(), queries.slots.data_ptr()),
            *(queries.positions.data_ptr(), *self._rotary, num_slots, scratch.data_ptr(), 0),
        )
        refuse_outside(run_team(_FUNCTION, given)[IS_OUTSIDE])
