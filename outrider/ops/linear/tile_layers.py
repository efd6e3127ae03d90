"""Decoder layers over weights in tiles: all layers of a step in one parallel region, on a CPU."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outrider.ops.attention.attend_in_place import QueryGroup, key_scratch_bytes
from outrider.ops.compiled.attend_keys import MOST_GROUPS, NUM_GROUP
from outrider.ops.compiled.layer_region import LAYERS_OUTSIDE, run_layers
from outrider.ops.compiled.thread_team import run_team_at
from outrider.ops.graph_break import graph_break
from outrider.ops.linear.normed_tiles import TileGate, TileHeads, refuse_outside
from outrider.ops.linear.tiled_product import NO_NORM, TiledProduct, assert_floats
from outrider.ops.norm_rope.rotary import Rotation

_FUNCTION = int(run_layers.address)
_NO_GROUP = (0,) * NUM_GROUP


@dataclass(frozen=True, slots=True, kw_only=True)
class TileLayer:
    """The parts of a layer. All of them have weights in tiles, and none has a bias."""

    heads: TileHeads
    output: TiledProduct
    gate: TileGate
    down: TiledProduct

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
    def products(self) -> tuple[TiledProduct, ...]:
        return self.heads.qkv, self.output, self.gate.gate_up, self.down


@dataclass(frozen=True, slots=True, kw_only=True)
class TileStep:
    """The inputs of a step that all layers share, and the outputs of some."""

    rotation: Rotation
    slots: torch.Tensor  # [num_query] int64
    groups: Sequence[QueryGroup]
    aux_layers: tuple[int, ...]  # after which the stream is copied
    aux: torch.Tensor  # [num_query, aux] where to, one beside the other


@dataclass(frozen=True, slots=True)
class LayersCall:
    """The integers that `run_layers` reads."""

    arguments: "ctypes.Array[ctypes.c_int64]"
    memory: tuple[torch.Tensor, ...]  # that they point to, besides the operands

    @property
    def address(self) -> int:
        return ctypes.addressof(self.arguments)

    def refuse_outside(self) -> None:
        """After the region has run."""
        refuse_outside(self.arguments[LAYERS_OUTSIDE])


class TileLayers:
    """Owns the table of the layers' weights."""

    def __init__(self, layers: Sequence[TileLayer], scale: float) -> None:
        self._layers = tuple(layers)  # whose memory the table points to
        self._table = torch.tensor([layer.fields for layer in layers], dtype=torch.int64)
        self._factors = torch.tensor([scale, 0.0], dtype=torch.float32)  # and no soft cap
        products = (each for layer in layers for each in layer.products)
        # One of each that needs other memory.
        self._unlike = list({(each.inputs, each.is_dense): each for each in products}.values())

    def __call__(
        self,
        x: torch.Tensor,  # [num_query, in] of the first layer; may be the stream
        stream: torch.Tensor,  # [num_query, hidden] overwritten
        pools: Sequence[torch.Tensor],  # [pages, page_size, 2 * kv_heads, head_dim] of each layer
        step: TileStep,
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
        step: TileStep,
    ) -> None:
        if x.shape[0]:
            call = self.call_of(x, stream, pools, step)  # which owns what is at the address
            run_team_at(_FUNCTION, call.address)
            call.refuse_outside()

    def call_of(
        self,
        x: torch.Tensor,  # [num_query, in] contiguous; num_query is not 0
        stream: torch.Tensor,  # [num_query, hidden] contiguous
        pools: Sequence[torch.Tensor],
        step: TileStep,
    ) -> LayersCall:
        """What the region gets for these operands."""
        rows, first, groups = x.shape[0], self._layers[0], step.groups
        assert_floats(x, stream, pools[0], step.rotation.cos, step.rotation.sin)
        assert len(pools) == len(self._layers)
        num_slots, vectors, head_dim = pools[0].flatten(0, 1).shape
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
            *(step.aux.data_ptr(), step.aux.shape[1], len(step.aux_layers), num_slots, 0),
        )
        fields = [group.fields for group in groups]
        fields += [_NO_GROUP] * (MOST_GROUPS - len(groups))
        behind = (*(each for group in fields for each in group), *(p.data_ptr() for p in pools))
        arguments = (*head, *behind, *step.aux_layers)
        length = len(arguments) + 1
        return LayersCall((ctypes.c_int64 * length)(length, *arguments), (wide, scratch))

    def _scratch(self, rows: int, groups: Sequence[QueryGroup]) -> torch.Tensor:
        """Memory of products and of attention, which use it in turn."""
        products = (each.scratch_bytes(rows) for each in self._unlike)
        return torch.empty(max(*products, key_scratch_bytes(groups)), dtype=torch.uint8)
