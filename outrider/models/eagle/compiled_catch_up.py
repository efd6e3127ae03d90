"""A catch-up whose parts are all compiled functions of a CPU runs as one parallel region.

The region calls the functions of the parts, as `compiled_layers` does.
"""

from collections.abc import Callable

import torch

from outrider.models.eagle.aux_projection import AuxProjection
from outrider.models.layers.attention_layer import KVWriter
from outrider.models.layers.normed_linear import TileProjection
from outrider.models.layers.rotary_embedding import RotaryEmbedding
from outrider.ops.compiled.why_not_compiled import why_not_compiled
from outrider.ops.linear.joined_embedding import JoinedEmbedding
from outrider.ops.linear.normed_tiles import TileHeads, product_of
from outrider.ops.linear.tiled_product import TiledProduct
from outrider.ops.norm_rope.rms_norm import CompiledNorm, Norm, NormLater
from outrider.ops.norm_rope.rotary import RotaryFrequencies, is_rotation_compiled
from outrider.ops.tree.plan_rows import Queries


class CompiledCatchUp:
    """Projects aux hidden states, and writes the keys and values of decided tokens."""

    def __init__(
        self,
        project: TiledProduct,
        kv: TileHeads,
        *,
        join: JoinedEmbedding,
        aux_norm: Norm,
        frequencies: RotaryFrequencies,
    ) -> None:
        from outrider.ops.linear.tile_catch_up import CatchUpParts, TileCatchUp

        self._run = TileCatchUp(
            CatchUpParts(
                aux_norm=aux_norm,
                project=project,
                join=join,
                kv=kv,
                frequencies=frequencies,
            )
        )

    def __call__(
        self,
        aux_hidden_states: torch.Tensor,  # [num_query, aux]
        queries: Queries,
        layer: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim]
    ) -> torch.Tensor:  # [num_query, width]
        """The projected hidden states."""
        return self._run(aux_hidden_states, queries, layer)


def compile_catch_up(
    project: Callable[[torch.Tensor], torch.Tensor],
    kv: KVWriter,
    *,
    join: JoinedEmbedding | None,
    rotary: RotaryEmbedding,
) -> CompiledCatchUp | None:
    """The parts as one region; None where a part is no compiled function."""
    if not isinstance(project, AuxProjection) or not isinstance(kv, TileProjection):
        return None
    if join is None or not is_rotation_compiled(rotary.frequencies):
        return None
    aux_norm, product = project.norm, product_of(project.linear)
    if product is None or not isinstance(aux_norm, CompiledNorm | NormLater):
        return None
    if why_not_compiled("outrider.ops.compiled.catch_up_region"):
        return None
    return CompiledCatchUp(
        product,
        kv.heads,
        join=join,
        aux_norm=aux_norm,
        frequencies=rotary.frequencies,
    )
