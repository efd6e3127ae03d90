"""Decoder layers over weight blocks: all layers of a step in one parallel region, on a CPU."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outrider.ops.attention.attend_in_place import QueryGroup, key_scratch_bytes
from outrider.ops.compiled.attend_keys import MOST_GROUPS, NUM_GROUP
from outrider.ops.compiled.coded_rows import scratch_bytes
from outrider.ops.compiled.layer_region import run_layers
from outrider.ops.compiled.thread_team import run_team
from outrider.ops.graph_break import graph_break
from outrider.ops.linear.block_linear import NO_NORM, BlockLinear
from outrider.ops.linear.normed_blocks import BlockGate, BlockHeads
from outrider.ops.norm_rope.rotary import Rotation

_FUNCTION = int(run_layers.address)
_NO_GROUP = (0,) * NUM_GROUP


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLayer:
    """The parts of a layer. All of them have weights of blocks, and none has a bias."""

    heads: BlockHeads
    output: BlockLinear
    gate: BlockGate
    down: BlockLinear

    @property
    def fields(self) -> tuple[tuple[int, ...], ...]:
        """What compiled functions read of the weights."""
        return (
            self.heads.qkv.fields(self.heads.norm),
            self.output.fields(NO_NORM),
            self.gate.gate_up.fields(self.gate.norm),
            self.down.fields(NO_NORM),
        )

    @property
    def widest(self) -> int:
        """The largest number of inputs of a product."""
        return max(self.heads.qkv.inputs, self.output.inputs, self.down.inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStep:
    """The inputs of a step that all layers share, and the outputs of some."""

    rotation: Rotation
    slots: torch.Tensor  # [num_query] int64
    groups: Sequence[QueryGroup]
    aux_layers: tuple[int, ...]  # after which the stream is copied
    aux: torch.Tensor  # [num_query, aux] where to, one beside the other


class BlockLayers:
    """Owns the table of the layers' weights."""

    def __init__(self, layers: Sequence[BlockLayer], scale: float) -> None:
        self._layers = tuple(layers)  # whose memory the table points to
        self._table = torch.tensor([layer.fields for layer in layers], dtype=torch.int64)
        self._factors = torch.tensor([scale, 0.0], dtype=torch.float32)  # and no soft cap
        self._widest = max(layer.widest for layer in layers)

    def __call__(
        self,
        x: torch.Tensor,  # [num_query, in] of the first layer; may be the stream
        stream: torch.Tensor,  # [num_query, hidden] overwritten
        pools: Sequence[torch.Tensor],  # [pages, page_size, 2 * kv_heads, head_dim] of each layer
        step: BlockStep,
    ) -> torch.Tensor:  # [num_query, hidden]
        """The residual stream after all layers; writes the KV of every query token."""
        stream = stream.contiguous()
        graph_break(self._run, x.contiguous(), stream, pools, step)
        return stream

    def _run(
        self,
        x: torch.Tensor,
        stream: torch.Tensor,
        pools: Sequence[torch.Tensor],
        step: BlockStep,
    ) -> None:
        rows, first, groups = x.shape[0], self._layers[0], step.groups
        if not rows:
            return
        vectors, head_dim = pools[0].shape[2:]
        channels, attended = first.heads.qkv.outputs, first.output.inputs
        wide = torch.empty(rows * (channels + attended + first.down.inputs))
        channels_at, item = wide.data_ptr(), rows * wide.itemsize
        attended_at = channels_at + item * channels
        scratch = self._scratch(rows, groups)
        head = (
            *(len(pools), self._table.data_ptr()),
            *(rows, x.data_ptr(), stream.data_ptr(), stream.shape[1]),
            *(attended // head_dim, vectors, head_dim),
            *(step.rotation.cos.data_ptr(), step.rotation.sin.data_ptr(), step.slots.data_ptr()),
            *(self._factors.data_ptr(), len(groups)),
            *(channels_at, attended_at, attended_at + item * attended, scratch.data_ptr()),
            *(step.aux.data_ptr(), step.aux.shape[1], len(step.aux_layers)),
        )
        fields = [group.fields for group in groups]
        fields += [_NO_GROUP] * (MOST_GROUPS - len(groups))
        behind = (*(each for group in fields for each in group), *(p.data_ptr() for p in pools))
        arguments = (*head, *behind, *step.aux_layers)
        run_team(_FUNCTION, (len(arguments) + 1, *arguments))

    def _scratch(self, rows: int, groups: Sequence[QueryGroup]) -> torch.Tensor:
        """Memory of products and of attention, which use it in turn."""
        threads = torch.get_num_threads()
        product = scratch_bytes(rows=rows, inputs=self._widest, threads=threads)
        return torch.empty(max(product, key_scratch_bytes(groups)), dtype=torch.uint8)
