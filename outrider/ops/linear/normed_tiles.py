"""Linear layers over weights in tiles, fused with the norm before them and with what follows."""

import torch

from outrider.ops.compiled.block_kind import TILE
from outrider.ops.graph_break import graph_break
from outrider.ops.linear.block_linear import BlockLinear
from outrider.ops.linear.dense_linear import DenseLinear
from outrider.ops.linear.linear import Linear
from outrider.ops.linear.tiled_product import TiledProduct, assert_floats
from outrider.ops.norm_rope.rms_norm import Norm, with_eps
from outrider.ops.norm_rope.rotary import Rotation


class TileGate:
    """silu(gate) * up of the two halves of norm(x) W^T, in one compiled function."""

    def __init__(self, norm: Norm, gate_up: TiledProduct) -> None:
        from outrider.ops.compiled.tile_product import gated_product

        self.norm = with_eps(norm.weight, norm.eps)
        self.gate_up = gate_up
        self._function = int(gated_product.address)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:  # [n, in] -> [n, intermediate]
        out = x.new_empty(x.shape[0], self.gate_up.outputs // 2)
        graph_break(self._run, x.contiguous(), out)
        return out

    def _run(self, x: torch.Tensor, out: torch.Tensor) -> None:
        if x.shape[0]:
            self.gate_up.run(self._function, x, out, self.norm)


class TileHeads:
    """Norm, projection, rotation and the KV write, in one compiled function."""

    def __init__(self, norm: Norm, qkv: TiledProduct) -> None:
        from outrider.ops.compiled.tile_product import HEADS_OUTSIDE, projected_heads

        self.norm = with_eps(norm.weight, norm.eps)
        self.qkv = qkv
        self._function, self._outside = int(projected_heads.address), HEADS_OUTSIDE

    def __call__(
        self,
        x: torch.Tensor,  # [num_query, in]
        rotation: Rotation,
        layer: torch.Tensor,  # [pages, page_size, 2 * kv_heads, head_dim]
        slots: torch.Tensor,  # [num_query]
    ) -> torch.Tensor:  # [num_query, heads, head_dim]
        """The rotated queries; keys and values are written to their slots."""
        channels = x.new_empty(x.shape[0], self.qkv.outputs)
        graph_break(self._run, x.contiguous(), rotation.cos, rotation.sin, layer, slots, channels)
        vectors, head_dim = layer.shape[2:]
        return channels.view(x.shape[0], -1, head_dim)[:, :-vectors]

    def _run(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        layer: torch.Tensor,
        slots: torch.Tensor,
        channels: torch.Tensor,
    ) -> None:
        if not x.shape[0]:
            return
        num_slots, vectors, head_dim = layer.flatten(0, 1).shape
        assert_floats(layer, cos, sin)
        given = self.qkv.run(
            self._function,
            x,
            channels,
            self.norm,
            self.qkv.outputs // head_dim - vectors,
            vectors,
            head_dim,
            cos.data_ptr(),
            sin.data_ptr(),
            layer.data_ptr(),
            slots.data_ptr(),
            num_slots,
            0,
        )
        refuse_outside(given[self._outside])


def refuse_outside(is_outside: int) -> None:
    """Nothing was written there: a wrong plan ends its requests, not the process."""
    if is_outside:
        raise IndexError("a slot lies outside of the KV pool")


def product_of(linear: Linear) -> TiledProduct | None:
    """What regions of several layers read of a linear layer; None if it is no compiled function."""
    if isinstance(linear, BlockLinear | DenseLinear):
        return linear.product
    return None


def can_gate(gate_up: TiledProduct) -> bool:
    """Whether the halves are whole tiles."""
    return gate_up.outputs % (2 * TILE) == 0
