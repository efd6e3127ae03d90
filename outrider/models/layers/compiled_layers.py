"""Layers whose parts are all compiled functions of a CPU run as one parallel region.

The region calls the functions of the parts, so a layer is described once. It saves the Python, the
small operations and the fork-joins between them.
"""

from collections.abc import Sequence

import torch

from outrider.models.layers.attention_layer import Attention, AttentionStep, NoGate, SelfAttention
from outrider.models.layers.mlp import FeedForward, Mlp
from outrider.models.layers.normed_linear import TileProjection
from outrider.ops.compiled.why_not_compiled import why_not_compiled
from outrider.ops.linear.normed_tiles import TileGate, TileHeads, product_of
from outrider.ops.linear.tiled_product import TiledProduct
from outrider.step.attention_backend import AttentionBackend

_TiledParts = tuple[TileHeads, TiledProduct, TileGate, TiledProduct]


class CompiledLayers:
    """Runs steps whose attention is compiled, too."""

    def __init__(self, parts: Sequence[_TiledParts], scale: float) -> None:
        from outrider.kv.compiled_attention import CompiledAttention, query_groups
        from outrider.ops.linear.tile_layers import TileLayer, TileLayers, TileStep

        self._backend, self._groups_of, self._make_step = CompiledAttention, query_groups, TileStep
        self.tiles = TileLayers(
            [
                TileLayer(heads=heads, output=output, gate=gate, down=down)
                for heads, output, gate, down in parts
            ],
            scale,
        )

    def can_run(self, backend: AttentionBackend, stored: Sequence[torch.Tensor]) -> bool:
        """Whether the region has the attention of this backend, over KV of this type."""
        return isinstance(backend, self._backend) and stored[0].dtype == torch.float32

    def __call__(
        self,
        x: torch.Tensor,  # [n, in] of the first layer; n is num_query or more
        stream: torch.Tensor,  # [n, hidden] overwritten
        stored: Sequence[torch.Tensor],  # [pages, page_size, 2 * kv_heads, head_dim] of each layer
        step: AttentionStep,
        aux_layers: tuple[int, ...],
        aux: torch.Tensor,  # [num_query, aux]
    ) -> torch.Tensor:  # [num_query, hidden]
        num_query = step.slots.shape[0]
        shared = self._make_step(
            rotation=step.rotation,
            slots=step.slots,
            groups=self._groups_of(step.plan),
            aux_layers=aux_layers,
            aux=aux,
        )
        return self.tiles(x[:num_query], stream[:num_query], stored, shared)


def compile_layers(layers: Sequence[tuple[Attention, FeedForward]]) -> CompiledLayers | None:
    """The layers as one region; None where a part of a layer is no compiled function.

    The region's attention reads whole texts, with one scale for all layers, and its memory is for
    layers of one size.
    """
    parts = [_tiled_parts(attention, mlp) for attention, mlp in layers]
    known = [each for each in parts if each is not None]
    if len(known) < len(parts) or len({_sizes(each) for each in known}) != 1:
        return None
    rules = [each.rule for each, _ in layers if isinstance(each, SelfAttention)]
    scales = {rule.scale for rule in rules}
    if len(scales) > 1 or not all(rule.is_plain for rule in rules):
        return None
    if why_not_compiled("outrider.ops.compiled.layer_region"):
        return None
    return CompiledLayers(known, scales.pop())


def _sizes(parts: _TiledParts) -> tuple[tuple[int, int], ...]:
    heads, output, gate, down = parts
    return tuple((each.inputs, each.outputs) for each in (heads.qkv, output, gate.gate_up, down))


def _tiled_parts(attention: Attention, mlp: FeedForward) -> _TiledParts | None:
    if not isinstance(attention, SelfAttention) or not isinstance(mlp, Mlp):
        return None
    project, gate = attention.project, mlp.gate
    if not isinstance(project, TileProjection) or not isinstance(gate, TileGate):
        return None
    output, down = product_of(attention.output), product_of(mlp.down)
    if output is None or down is None:
        return None
    return (project.heads, output, gate, down) if isinstance(attention.gate, NoGate) else None
