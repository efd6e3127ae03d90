"""The catch-up of an EAGLE-3 head over weight blocks, in one parallel region on a CPU."""

from dataclasses import dataclass

import torch

from outrider.ops.compiled.catch_up_region import IS_OUTSIDE, catch_up_rows
from outrider.ops.compiled.coded_rows import scratch_bytes
from outrider.ops.compiled.thread_team import run_team
from outrider.ops.graph_break import graph_break
from outrider.ops.linear.block_linear import NO_NORM, BlockLinear
from outrider.ops.linear.normed_blocks import BlockHeads
from outrider.ops.norm_rope.rms_norm import Norm, with_eps
from outrider.ops.norm_rope.rotary import Rotation

_FUNCTION = int(catch_up_rows.address)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUpParts:
    """The parts of the head that a catch-up runs. None of them has a bias."""

    aux_norm: Norm  # weight [norms of a row, channels]; empty where there is none
    project: BlockLinear  # [aux -> width]
    embedding: torch.Tensor  # [vocab, width] float32 contiguous
    embedding_norm: Norm
    hidden_norm: Norm
    kv: BlockHeads  # of keys and values alone


class BlockCatchUp:
    """Owns what the region reads of the weights."""

    def __init__(self, parts: CatchUpParts) -> None:
        self._parts = parts  # whose memory the table points to
        project, kv = parts.project, parts.kv
        fields = project.fields(NO_NORM), kv.qkv.fields(kv.norm)
        self._table = torch.tensor(fields, dtype=torch.int64)
        norms = parts.aux_norm, parts.embedding_norm, parts.hidden_norm
        self._norms = [with_eps(norm.weight, norm.eps) for norm in norms]
        self._num_norms, self._normed = 0, project.inputs
        if len(parts.aux_norm.weight):
            self._normed = parts.aux_norm.weight.shape[-1]
            self._num_norms = project.inputs // self._normed
        self._widest = max(project.inputs, kv.qkv.inputs)

    def __call__(
        self,
        aux_hidden_states: torch.Tensor,  # [num_query, aux]
        tokens: torch.Tensor,  # [num_query] int64
        rotation: Rotation,
        layer: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim] float32
        slots: torch.Tensor,  # [num_query]
    ) -> torch.Tensor:  # [num_query, width]
        """The projected hidden states; keys and values are written to their slots."""
        width = self._parts.project.outputs
        states = aux_hidden_states.new_empty(aux_hidden_states.shape[0], width)
        aux = aux_hidden_states.contiguous()
        graph_break(self._run, aux, tokens, rotation, layer, slots, states)
        return states

    def _run(
        self,
        aux: torch.Tensor,
        tokens: torch.Tensor,
        rotation: Rotation,
        layer: torch.Tensor,
        slots: torch.Tensor,
        states: torch.Tensor,
    ) -> None:
        rows, parts, item = aux.shape[0], self._parts, aux.itemsize
        if not rows:
            return
        (vocab, width), channels = parts.embedding.shape, parts.kv.qkv.outputs
        wide = torch.empty(rows * (2 * width + channels + parts.project.inputs))
        joined = wide.data_ptr()
        channels_at = joined + rows * 2 * width * item
        normed_at = channels_at + rows * channels * item if self._num_norms else aux.data_ptr()
        size = scratch_bytes(rows=rows, inputs=self._widest, threads=torch.get_num_threads())
        scratch = torch.empty(size, dtype=torch.uint8)
        aux_norm, embedding_norm, hidden_norm = (norm.data_ptr() for norm in self._norms)
        given = (
            *(self._table.data_ptr(), rows, aux.data_ptr()),
            *(self._num_norms, self._normed, aux_norm, normed_at),
            *(tokens.data_ptr(), parts.embedding.data_ptr(), vocab, width),
            *(embedding_norm, hidden_norm, states.data_ptr(), joined, channels_at),
            *layer.shape[2:],
            *(rotation.cos.data_ptr(), rotation.sin.data_ptr()),
            *(layer.data_ptr(), slots.data_ptr(), scratch.data_ptr(), 0),
        )
        if run_team(_FUNCTION, given)[IS_OUTSIDE]:
            raise IndexError("a token lies outside of the embedding of the head")
