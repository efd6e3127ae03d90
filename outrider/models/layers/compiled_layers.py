"""Layers whose parts are all compiled functions of a CPU run as one parallel region.

The region calls the functions of the parts, so a layer is described once. It saves the Python, the
small operations and the fork-joins between them.
"""

from collections.abc import Sequence

import torch

from outrider.models.layers.attention_layer import Attention, AttentionStep, NoGate, SelfAttention
from outrider.models.layers.mlp import FeedForward, Mlp
from outrider.models.layers.normed_linear import BlockProjection
from outrider.ops.compiled.why_not_compiled import why_not_compiled
from outrider.ops.linear.block_linear import BlockLinear
from outrider.ops.linear.normed_blocks import BlockGate, BlockHeads
from outrider.step.attention_backend import AttentionBackend

_BlockParts = tuple[BlockHeads, BlockLinear, BlockGate, BlockLinear]


class CompiledLayers:
    """Runs steps whose attention is compiled, too."""

    def __init__(self, parts: Sequence[_BlockParts], scale: float) -> None:
        from outrider.kv.compiled_attention import CompiledAttention, query_groups
        from outrider.ops.linear.block_layers import BlockLayer, BlockLayers, BlockStep

        self._backend, self._groups_of, self._make_step = CompiledAttention, query_groups, BlockStep
        self._layers = BlockLayers(
            [
                BlockLayer(heads=heads, output=output, gate=gate, down=down)
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
        return self._layers(x[:num_query], stream[:num_query], stored, shared)


def compile_layers(layers: Sequence[tuple[Attention, FeedForward]]) -> CompiledLayers | None:
    """The layers as one region; None where a part of a layer is no compiled function.

    The region's attention reads whole texts, with one scale for all layers.
    """
    parts = [_block_parts(attention, mlp) for attention, mlp in layers]
    known = [each for each in parts if each is not None]
    if not known or len(known) < len(parts):
        return None
    rules = [each.rule for each, _ in layers if isinstance(each, SelfAttention)]
    scales = {rule.scale for rule in rules}
    if len(scales) > 1 or not all(rule.is_plain for rule in rules):
        return None
    if why_not_compiled("outrider.ops.compiled.layer_region"):
        return None
    return CompiledLayers(known, scales.pop())


def _block_parts(attention: Attention, mlp: FeedForward) -> _BlockParts | None:
    if not isinstance(attention, SelfAttention) or not isinstance(mlp, Mlp):
        return None
    project, output, gate, down = attention.project, attention.output, mlp.gate, mlp.down
    if not isinstance(project, BlockProjection) or not isinstance(gate, BlockGate):
        return None
    if not isinstance(output, BlockLinear) or not isinstance(down, BlockLinear):
        return None
    return (project.heads, output, gate, down) if isinstance(attention.gate, NoGate) else None
