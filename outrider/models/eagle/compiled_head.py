"""A head whose parts are all compiled functions of a CPU runs its steps as one parallel region.

The region calls the functions of the parts, as `compiled_layers` does.
"""

from collections.abc import Sequence

import torch

from outrider.models.layers.compiled_layers import CompiledLayers
from outrider.models.layers.rotary_embedding import RotaryEmbedding
from outrider.ops.compiled.why_not_compiled import why_not_compiled
from outrider.ops.linear.joined_embedding import JoinedEmbedding
from outrider.ops.norm_rope.rotary import is_rotation_compiled
from outrider.step.attention_backend import AttentionBackend
from outrider.step.plan import StepPlan


class CompiledHead:
    """Runs steps whose attention is compiled, too."""

    def __init__(
        self,
        join: JoinedEmbedding,
        layers: CompiledLayers,
        rotary: RotaryEmbedding,
        *,
        is_residual_normed: bool,
    ) -> None:
        from outrider.kv.compiled_attention import query_groups
        from outrider.ops.linear.tile_head import TileHead

        self._layers, self._groups_of = layers, query_groups
        self._run = TileHead(
            join, layers.tiles, rotary.frequencies, is_residual_normed=is_residual_normed
        )

    def can_run(self, backend: AttentionBackend, stored: Sequence[torch.Tensor]) -> bool:
        """Whether the region has the attention of this backend, over KV of this type."""
        return self._layers.can_run(backend, stored)

    def __call__(
        self,
        plan: StepPlan,
        states: torch.Tensor,  # [num_query, width]
        stored: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim]
    ) -> torch.Tensor:  # [num_query, width]
        """The hidden states after the layer; writes the KV of every query token."""
        return self._run(states, plan.queries, stored, self._groups_of(plan.attention))


def compile_head(
    join: JoinedEmbedding | None,
    layers: CompiledLayers | None,
    rotary: RotaryEmbedding,
    *,
    is_residual_normed: bool,
) -> CompiledHead | None:
    """The parts as one region; None where a part is no compiled function."""
    if join is None or layers is None or not is_rotation_compiled(rotary.frequencies):
        return None
    if why_not_compiled("outrider.ops.compiled.head_region"):
        return None
    return CompiledHead(join, layers, rotary, is_residual_normed=is_residual_normed)
